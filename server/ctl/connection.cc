#include "server/ctl/connection.h"

#include <google/protobuf/util/json_util.h>

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/transport/grpc_credentials.h"
#include "server/transport/token_file.h"

namespace lossgauge::ctl {
namespace {

constexpr char kDefaultAddress[] = "127.0.0.1:9789";
constexpr int kMaxMessageBytes = 64 << 20;  // a page of steps with many ranks in it

// What gRPC would take for the name of a host, and say nothing of use about.
absl::Status CheckAddress(const std::string& address) {
  constexpr absl::string_view kForm = "write HOST:PORT, such as 127.0.0.1:9789";
  if (address.starts_with("http://") || address.starts_with("https://")) {
    return absl::InvalidArgumentError(absl::StrCat("address ", address, ": is a URL; ", kForm, ", that of --grpc_listen, and --tls-ca for TLS"));
  }
  if (address.find(':') == std::string::npos) return absl::InvalidArgumentError(absl::StrCat("address ", address, ": no port; ", kForm));
  return absl::OkStatus();
}

}  // namespace

Connection::Connection(const Options& options, const Io& io) : timeout_(absl::Seconds(5)) {
  const std::string from_environment = io.environment("LOSSGAUGE_ADDRESS");
  address_ = options.Text("address", from_environment.empty() ? kDefaultAddress : from_environment);
  if (options.Has("timeout")) absl::ParseDuration(options.Text("timeout"), &timeout_);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetUserAgentPrefix("lossgaugectl");
  const auto setting = [&](const char* flag, const char* variable) { return options.Text(flag, io.environment(variable)); };
  transport::ClientTlsFiles files;
  files.ca = setting("tls-ca", "LOSSGAUGE_TLS_CA");
  files.cert = setting("tls-cert", "LOSSGAUGE_TLS_CERT");
  files.key = setting("tls-key", "LOSSGAUGE_TLS_KEY");
  absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials = transport::MakeChannelCredentials("--tls-", files);
  setup_ = CheckAddress(address_);
  setup_.Update(credentials.status());
  if (const std::string path = setting("token-file", "LOSSGAUGE_TOKEN_FILE"); !path.empty() && setup_.ok()) {
    absl::StatusOr<std::string> token = transport::ReadToken("--token-file", path);
    setup_ = token.status();
    if (token.ok()) authorization_ = "Bearer " + *token;
  }
  // A call over what cannot be set up fails at once, and Explain says why.
  stub_ = v1::LossGauge::NewStub(setup_.ok() ? grpc::CreateCustomChannel(address_, *credentials, arguments)
                                             : grpc::CreateCustomChannel("", nullptr, arguments));
}

std::unique_ptr<grpc::ClientContext> Connection::NewContext() const {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(absl::ToChronoTime(absl::Now() + timeout_));
  if (!authorization_.empty()) context->AddMetadata("authorization", authorization_);
  return context;
}

int Connection::Explain(const grpc::Status& status, Io& io) const {
  if (!setup_.ok()) {
    io.err << "lossgaugectl: " << Printable(std::string(setup_.message())) << "\n";
    return kWrongUse;
  }
  const std::string said = Printable(status.error_message());
  const std::string where = Printable(address_);
  io.err << "lossgaugectl: ";
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
      io.err << "cannot reach lossgauged at " << where << ": " << said << "\n"
             << "Is lossgauged running? Its --grpc_listen must be what --address or LOSSGAUGE_ADDRESS says here, and TLS on both sides or none.\n";
      break;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      io.err << "no answer from " << where << " within " << absl::FormatDuration(timeout_) << "\n"
             << "Is lossgauged running and not stopped? --timeout gives it longer.\n";
      break;
    case grpc::StatusCode::UNIMPLEMENTED:
      io.err << where << " does not know this call: " << said << "\n"
             << "Is it lossgauged, and no older than this lossgaugectl?\n";
      break;
    case grpc::StatusCode::UNAUTHENTICATED:
      io.err << where << " refused: " << said << "\n"
             << "--token-file or LOSSGAUGE_TOKEN_FILE names a file with a token of its --token_file.\n";
      break;
    case grpc::StatusCode::NOT_FOUND:
      io.err << said << " (asked " << where << ")\n";
      break;
    default:
      io.err << where << " answered " << status.error_code() << ": " << said << "\n";
  }
  return kFailed;
}

namespace {

bool IsWellKnownTime(const google::protobuf::Message& message) {
  const std::string& name = message.GetDescriptor()->full_name();
  return name == "google.protobuf.Timestamp" || name == "google.protobuf.Duration";
}

bool HasJson(const google::protobuf::Message& message) {
  std::string json;
  return google::protobuf::util::MessageToJsonString(message, &json).ok();
}

// Takes out times that JSON has no text for.
void ClearBadTimes(google::protobuf::Message* message) {
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  reflection.ListFields(*message, &fields);
  for (const google::protobuf::FieldDescriptor* field : fields) {
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (field->is_repeated()) {
      for (int i = 0; i < reflection.FieldSize(*message, field); ++i) ClearBadTimes(reflection.MutableRepeatedMessage(message, field, i));
    } else if (google::protobuf::Message* part = reflection.MutableMessage(message, field); IsWellKnownTime(*part) && !HasJson(*part)) {
      reflection.ClearField(message, field);
    } else {
      ClearBadTimes(part);
    }
  }
}

}  // namespace

std::string ToJson(const google::protobuf::Message& message, bool indent) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.add_whitespace = indent;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(message, &json, options).ok()) {
    const std::unique_ptr<google::protobuf::Message> repaired(message.New());
    repaired->CopyFrom(message);
    ClearBadTimes(repaired.get());
    json.clear();
    (void)google::protobuf::util::MessageToJsonString(*repaired, &json, options);
  }
  if (json.empty() || json.back() != '\n') json.push_back('\n');
  return json;
}

}  // namespace lossgauge::ctl
