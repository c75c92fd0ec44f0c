// Asks for a run's verdict as a scheduler does, over gRPC and over HTTP, and says how long the answers took.
//
//   asker --grpc=HOST:PORT --http=HOST:PORT --run=fleet [--seconds=60] [--rate=20]
//
// A process of its own: beside a simulated fleet's hundreds of connections an answer that has come would wait for the fleet's own threads, and that would
// be counted as the daemon's time. rate: questions a second of each kind, each asked at its time, whatever became of the one before; a late answer counts
// from when it was to be asked. Standard output: one JSON object; "failed" counts questions without an answer. Exit code: 0, 2 wrong use.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lossgauge/v1/lossgauge.grpc.pb.h"
#include "server/transport/httplib.h"
#include "tests/bench/fleet/percentile.h"

namespace lossgauge::fleet {
namespace {

using Clock = std::chrono::steady_clock;

struct Flags {
  std::string grpc, http, run = "fleet";
  double seconds = 60, rate = 20;
};

struct Answers {
  std::vector<double> seconds;
  std::uint64_t failed = 0;
};

Answers Ask(const Flags& flags, const std::function<bool()>& question) {
  Answers answers;
  const auto period = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(1 / flags.rate));
  const Clock::time_point begin = Clock::now();
  const auto questions = static_cast<std::int64_t>(flags.seconds * flags.rate);
  Clock::time_point answered = begin;
  for (std::int64_t number = 0; number < questions; ++number) {
    const Clock::time_point due = begin + number * period;
    std::this_thread::sleep_until(due);
    // What this thread overslept is not the daemon's; what the answer before took is.
    const Clock::time_point asked = answered > due ? due : Clock::now();
    const bool is_answered = question();
    answered = Clock::now();
    if (is_answered) {
      answers.seconds.push_back(std::chrono::duration<double>(answered - asked).count());
    } else {
      ++answers.failed;
    }
  }
  return answers;
}

std::string Text(const Answers& answers) {
  return absl::StrFormat("{\"answers\": %d, \"failed\": %d, \"p50\": %.6f, \"p99\": %.6f, \"max\": %.6f}", answers.seconds.size(), answers.failed,
                         Percentile(answers.seconds, 0.5), Percentile(answers.seconds, 0.99), Percentile(answers.seconds, 1));
}

Answers AskGrpc(const Flags& flags) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto stub = v1::LossGauge::NewStub(grpc::CreateCustomChannel(flags.grpc, grpc::InsecureChannelCredentials(), arguments));
  return Ask(flags, [&] {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    v1::GetVerdictRequest request;
    request.set_run(flags.run);
    v1::Verdict verdict;
    return stub->GetVerdict(&context, request, &verdict).ok();
  });
}

Answers AskHttp(const Flags& flags) {
  const std::size_t colon = flags.http.rfind(':');
  httplib::Client client(flags.http.substr(0, colon), std::atoi(flags.http.c_str() + colon + 1));
  client.set_keep_alive(true);
  client.set_tcp_nodelay(true);
  client.set_read_timeout(std::chrono::seconds(10));
  return Ask(flags, [&] {
    const auto answer = client.Get(("/api/v1/verdict?run=" + flags.run).c_str());
    return answer && answer->status == 200;
  });
}

std::string Read(int argc, char** argv, Flags* flags) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals), value = equals == std::string::npos ? "" : word.substr(equals + 1);
    bool good = !value.empty();
    if (name == "--grpc") flags->grpc = value;
    else if (name == "--http") flags->http = value;
    else if (name == "--run") flags->run = value;
    else if (name == "--seconds") good = good && absl::SimpleAtod(value, &flags->seconds) && flags->seconds > 0;
    else if (name == "--rate") good = good && absl::SimpleAtod(value, &flags->rate) && flags->rate > 0;
    else return absl::StrCat("unknown ", word);
    if (!good) return absl::StrCat("bad value: ", word);
  }
  if (flags->grpc.empty() || flags->http.find(':') == std::string::npos) return "--grpc=HOST:PORT and --http=HOST:PORT are needed";
  return "";
}

int Main(int argc, char** argv) {
  Flags flags;
  if (const std::string wrong = Read(argc, argv, &flags); !wrong.empty()) {
    std::fprintf(stderr, "asker: %s\n", wrong.c_str());
    return 2;
  }
  Answers http;
  std::thread http_thread([&] { http = AskHttp(flags); });
  const Answers grpc = AskGrpc(flags);
  http_thread.join();
  std::printf("{\"grpc_s\": %s, \"http_s\": %s}\n", Text(grpc).c_str(), Text(http).c_str());
  return 0;
}

}  // namespace
}  // namespace lossgauge::fleet

int main(int argc, char** argv) { return lossgauge::fleet::Main(argc, argv); }
