// Packs what lossgauged knows of a run into one archive: the readers of it are people after the fact, and `replay`.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "server/ctl/bundle_writer.h"
#include "server/ctl/commands.h"
#include "server/ctl/connection.h"
#include "server/ctl/json_writer.h"
#include "server/ctl/step_export.h"
#include "server/ctl/values.h"
#include "server/replay/bundle.h"

namespace lossgauge::ctl {
namespace {

constexpr std::int32_t kPageSize = 1000;
// Of an incident's bundle: enough before it for a baseline, enough after it for its end.
constexpr std::int64_t kStepsBefore = 2000;
constexpr std::int64_t kStepsAfter = 500;

// What went wrong: an answer of lossgauged, or a file.
struct Trouble {
  grpc::Status rpc;
  absl::Status file;
  bool any() const { return !rpc.ok() || !file.ok(); }
};

class Bundler {
 public:
  Bundler(Connection* connection, BundleWriter* writer, std::string run) : connection_(*connection), writer_(*writer), run_(std::move(run)) {}

  Trouble Pack(const std::string& incident_id, absl::Time now) {
    if (!incident_id.empty()) FindIncident(incident_id);
    Manifest(incident_id, now);  // first, so that a reader knows at once what it has
    Explanation(incident_id);
    // Who answers for them is gone with a run of the past.
    Live<v1::GetRunRequest, v1::Run>("run.json", &v1::LossGauge::Stub::GetRun, [](const v1::Run& run) { return ToJson(run, true); });
    Live<v1::GetPolicyRequest, v1::Policy>("policy.yaml", &v1::LossGauge::Stub::GetPolicy, [](const v1::Policy& policy) { return policy.text(); });
    Lines<v1::ListIncidentsRequest, v1::ListIncidentsResponse, v1::Incident>("incidents.jsonl", &v1::LossGauge::Stub::ListIncidents,
                                                                             [](const auto& page) { return page.incidents(); });
    Lines<v1::ListVerdictsRequest, v1::ListVerdictsResponse, v1::Verdict>("verdicts.jsonl", &v1::LossGauge::Stub::ListVerdicts,
                                                                          [](const auto& page) { return page.verdicts(); });
    Lines<v1::ListEventsRequest, v1::ListEventsResponse, v1::Event>("events.jsonl", &v1::LossGauge::Stub::ListEvents,
                                                                    [](const auto& page) { return page.events(); });
    Steps("steps.jsonl", false);
    Steps("ranks.jsonl", true);
    if (!trouble_.any()) trouble_.file = writer_.Finish();
    return trouble_;
  }

 private:
  void Add(std::string_view bytes) {
    if (!trouble_.any()) trouble_.file = writer_.Add(bytes);
  }
  void EndMember(const std::string& name) {
    if (!trouble_.any()) trouble_.file = writer_.EndMember(name);
  }
  template <class Request, class Response>
  using Call = grpc::Status (v1::LossGauge::Stub::*)(grpc::ClientContext*, const Request&, Response*);
  template <class Request, class Response>
  grpc::Status Ask(Call<Request, Response> call, const Request& request, Response* response) {
    const auto context = connection_.NewContext();
    return (connection_.stub().*call)(context.get(), request, response);
  }
  // Calls `use` with each page until it says false.
  template <class Request, class Response>
  void Pages(Call<Request, Response> call, Request request, const std::function<bool(const Response&)>& use) {
    request.set_run(run_);
    request.set_page_size(kPageSize);
    while (!trouble_.any()) {
      Response page;
      trouble_.rpc = Ask(call, request, &page);
      if (trouble_.any() || !use(page) || page.next_page_token().empty() || page.next_page_token() == request.page_token()) return;
      request.set_page_token(page.next_page_token());
    }
  }

  void FindIncident(const std::string& id) {
    Pages<v1::ListIncidentsRequest, v1::ListIncidentsResponse>(&v1::LossGauge::Stub::ListIncidents, {}, [&](const auto& page) {
      for (const v1::Incident& incident : page.incidents()) {
        if (incident.id() == id) incident_ = incident;
      }
      return !incident_.has_value();
    });
    if (!trouble_.any() && !incident_) trouble_.rpc = {grpc::StatusCode::NOT_FOUND, absl::StrCat("run ", run_, " has no incident ", id)};
  }

  void Explanation(const std::string& incident_id) {
    if (trouble_.any()) return;
    v1::ExplainRequest request;
    request.set_run(run_);
    request.set_incident(incident_id);
    v1::Explanation story;
    trouble_.rpc = Ask<v1::ExplainRequest, v1::Explanation>(&v1::LossGauge::Stub::Explain, request, &story);
    std::string text = absl::StrCat(story.headline(), "\n");
    for (const v1::ExplanationPart& part : story.parts()) {
      absl::StrAppend(&text, "\n", part.title(), "\n");
      for (const std::string& line : part.lines()) absl::StrAppend(&text, "  ", line, "\n");
    }
    Add(text);
    EndMember("explanation.txt");
  }

  template <class Request, class Response>
  void Live(const std::string& name, Call<Request, Response> call, const std::function<std::string(const Response&)>& text) {
    if (trouble_.any()) return;
    Request request;
    request.set_run(run_);
    Response response;
    const grpc::Status status = Ask(call, request, &response);
    if (status.error_code() == grpc::StatusCode::NOT_FOUND || status.error_code() == grpc::StatusCode::UNAVAILABLE) return;
    trouble_.rpc = status;
    Add(text(response));
    EndMember(name);
  }

  // Messages as lines of JSON, in the order in which lossgauged lists them.
  template <class Request, class Response, class Item, class Items>
  void Lines(const std::string& name, Call<Request, Response> call, const Items& items) {
    Pages<Request, Response>(call, {}, [&](const Response& page) {
      for (const Item& item : items(page)) Add(ToJson(item, false));
      return true;
    });
    EndMember(name);
  }

  void Steps(const std::string& name, bool ranks) {
    v1::ListStepsRequest request;
    request.set_include_thinned(!ranks);
    request.set_include_ranks(ranks);
    if (incident_) {
      request.set_first_step(std::max<std::int64_t>(0, incident_->onset_step() - kStepsBefore));
      request.set_last_step(incident_->last_step() + kStepsAfter);
    }
    const std::unique_ptr<StepExport> all = MakeJsonlExport(std::nullopt);
    std::map<std::uint32_t, std::unique_ptr<StepExport>> each;
    std::string bytes;
    Pages<v1::ListStepsRequest, v1::ListStepsResponse>(&v1::LossGauge::Stub::ListSteps, request, [&](const auto& page) {
      for (const v1::Step& step : page.steps()) {
        if (!ranks) all->Add(step, &bytes);
        for (const v1::RankStep& rank : step.rank_steps()) {
          auto& own = each[rank.rank()];
          if (own == nullptr) own = MakeJsonlExport(rank.rank());
          own->Add(step, &bytes);
        }
      }
      Add(bytes);
      bytes.clear();
      return true;
    });
    EndMember(name);
  }

  void Manifest(const std::string& incident_id, absl::Time now) {
    Add(absl::StrCat("{\"format\": ", JsonText(replay::kBundleFormat), ", \"run\": ", JsonText(run_), ", \"incident\": ", JsonText(incident_id),
                     ", \"time\": ", JsonText(absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", now, absl::UTCTimeZone())),
                     ", \"lossgaugectl\": ", JsonText(LOSSGAUGE_VERSION), "}\n"));
    EndMember("MANIFEST.json");
  }

  Connection& connection_;
  BundleWriter& writer_;
  const std::string run_;
  std::optional<v1::Incident> incident_;
  Trouble trouble_;
};

int Run(const Options& options, Io& io) {
  const std::string path = options.Text("output");
  if (path.empty()) {
    io.err << "lossgaugectl bundle: -o FILE.tar is missing: where to write\n";
    return kWrongUse;
  }
  auto writer = BundleWriter::Create(path, io.now());
  if (!writer.ok()) {
    io.err << "lossgaugectl bundle: " << std::string(writer.status().message()) << "\n";
    return kFailed;
  }
  Connection connection(options, io);
  const Trouble trouble = Bundler(&connection, &*writer, options.operand(0)).Pack(options.operands().size() > 1 ? options.operand(1) : "", io.now());
  if (!trouble.rpc.ok()) return connection.Explain(trouble.rpc, io);
  if (!trouble.file.ok()) {
    io.err << "lossgaugectl bundle: " << std::string(trouble.file.message()) << "\n";
    return kFailed;
  }
  io.out << "wrote " << Printable(path) << "; lossgaugectl replay reads it\n";
  return kDone;
}

}  // namespace

Command BundleCommand() {
  return {.name = "bundle",
          .operands = "RUN [INCIDENT]",
          .summary = "pack all that is known of a run into one archive, for the post-mortem",
          .details = "A tar archive with the steps (over ranks, and each rank's own), events, incidents, verdicts, policy, layout and the explanation; "
                     "`replay` judges it again. With an incident: the steps from 2000 before it to 500 after it.",
          .flags = {{"output", FlagKind::kText, "FILE", "the archive; also -o FILE. Appears once it is whole"}},
          .remote = true,
          .run = Run};
}

}  // namespace lossgauge::ctl
