// Packs what lossgauged knows of a run into one archive: the readers of it are people after the fact, and `replay`.
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/ctl/bundle_writer.h"
#include "server/ctl/commands.h"
#include "server/ctl/connection.h"
#include "server/ctl/json_writer.h"
#include "server/ctl/pages.h"
#include "server/ctl/post_mortem.h"
#include "server/ctl/step_export.h"
#include "server/ctl/values.h"
#include "server/replay/bundle.h"

namespace lossgauge::ctl {
namespace {

using google::protobuf::util::TimeUtil;

constexpr std::int32_t kPageSize = 1000;
// Of an incident's bundle: enough before it for a baseline, enough after it for its end.
constexpr std::int64_t kStepsBefore = 2000;
constexpr std::int64_t kStepsAfter = 500;
constexpr std::size_t kMostPolicies = 100;  // that a manifest names
// By steps alone. For people.
constexpr char kNotJudgedAgain[] =
    "integrity, accounting, stalls, lost processes and what was done with verdicts; of several ranks also rank_missing and rank_outlier";
constexpr std::int64_t kJournalSlackSeconds = 5;  // verdicts follow their steps

// What went wrong: an answer of lossgauged, or a file.
struct Trouble {
  grpc::Status rpc;
  absl::Status file;
  bool any() const { return !rpc.ok() || !file.ok(); }
};

class Bundler {
 public:
  Bundler(Connection* connection, BundleWriter* writer, std::string run)
      : connection_(*connection), writer_(*writer), run_(std::move(run)), post_mortem_(*connection) {}

  Trouble Pack(const std::string& incident_id, absl::Time now) {
    if (!incident_id.empty()) FindIncident(incident_id);
    // Who answers for them is gone with a run of the past.
    const auto run = Live<v1::GetRunRequest, v1::Run>(&v1::LossGauge::Stub::GetRun);
    const auto policy = Live<v1::GetPolicyRequest, v1::Policy>(&v1::LossGauge::Stub::GetPolicy);
    FindPolicies();
    FindJournal();
    Manifest(incident_id, run, policy, now);  // first, so that a reader knows at once what it has
    Explanation(incident_id);
    if (run) {
      Add(ToJson(*run, true));
      EndMember("run.json");
    }
    Policies(policy);
    Lines<v1::ListIncidentsRequest, v1::ListIncidentsResponse, v1::Incident>("incidents.jsonl", &v1::LossGauge::Stub::ListIncidents,
                                                                             [](const auto& page) { return page.incidents(); });
    Lines<v1::ListVerdictsRequest, v1::ListVerdictsResponse, v1::Verdict>("verdicts.jsonl", &v1::LossGauge::Stub::ListVerdicts,
                                                                          [](const auto& page) { return page.verdicts(); });
    Lines<v1::ListEventsRequest, v1::ListEventsResponse, v1::Event>("events.jsonl", &v1::LossGauge::Stub::ListEvents,
                                                                    [](const auto& page) { return page.events(); });
    Steps("steps.jsonl", false);
    Steps("ranks.jsonl", true);
    Journal();
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
  grpc::Status Ask(ListCall<Request, Response> call, const Request& request, Response* response) {
    const auto context = connection_.NewContext();
    return (connection_.stub().*call)(context.get(), request, response);
  }
  // Calls `use` with each page until it says false.
  template <class Request, class Response>
  void Pages(ListCall<Request, Response> call, Request request, const std::function<bool(const Response&)>& use) {
    request.set_run(run_);
    request.set_page_size(kPageSize);
    if (trouble_.any()) return;
    trouble_.rpc = ForEachPage(connection_, call, request, [&](const Response& page) { return use(page) && !trouble_.any(); });
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
  std::optional<Response> Live(ListCall<Request, Response> call) {
    if (trouble_.any()) return std::nullopt;
    Request request;
    request.set_run(run_);
    Response response;
    const grpc::Status status = Ask(call, request, &response);
    if (status.error_code() == grpc::StatusCode::NOT_FOUND || status.error_code() == grpc::StatusCode::UNAVAILABLE) return std::nullopt;
    trouble_.rpc = status;
    return response;
  }

  // Versions of the policies that the verdicts were given by.
  void FindPolicies() {
    Pages<v1::ListVerdictsRequest, v1::ListVerdictsResponse>(&v1::LossGauge::Stub::ListVerdicts, {}, [&](const auto& page) {
      for (const v1::Verdict& verdict : page.verdicts()) {
        // Newest first. Of an incident's bundle those that were given before it ended.
        const std::int64_t given_ns = TimeUtil::TimestampToNanoseconds(verdict.evaluated_at());
        if (incident_ && !incident_->open() && given_ns > TimeUtil::TimestampToNanoseconds(incident_->resolved_time())) continue;
        if (!verdict.policy_version().empty()) policies_.insert(verdict.policy_version());
        if (incident_ && given_ns <= TimeUtil::TimestampToNanoseconds(incident_->onset_time())) return false;
      }
      return policies_.size() < kMostPolicies;
    });
  }

  void FindJournal() {
    if (trouble_.any()) return;
    trouble_.rpc = post_mortem_.Journal(run_, {}, [this](const v1::JournalPart&) {
      has_journal_ = true;
      return false;
    });
  }

  // policy.yaml: the one that is loaded, or of a run of the past the last that judged; and all that judged, as they were.
  void Policies(const std::optional<v1::Policy>& loaded) {
    std::vector<v1::KeptPolicy> kept;
    if (!trouble_.any()) trouble_.rpc = post_mortem_.Policies(run_, policies_, &kept);
    const v1::KeptPolicy* newest = nullptr;
    for (const v1::KeptPolicy& one : kept) {
      if (newest == nullptr || TimeUtil::TimestampToNanoseconds(one.first_used()) > TimeUtil::TimestampToNanoseconds(newest->first_used())) newest = &one;
    }
    if (loaded || newest != nullptr) {
      Add(loaded ? loaded->text() : newest->policy().text());
      EndMember("policy.yaml");
    }
    int number = 0;
    for (const v1::KeptPolicy& one : kept) {
      Add(absl::StrCat("# first used ", TimeUtil::ToString(one.first_used()), "\n", one.policy().text()));
      EndMember(absl::StrCat("policies/", ++number, ".yaml"));
    }
  }

  // Of an incident's bundle the parts around its steps.
  void Journal() {
    if (!has_journal_) return;
    TimeSpan span;
    if (incident_ && first_received_) span.first = *first_received_;
    if (incident_ && last_received_) {
      span.last = *last_received_;
      span.last->set_seconds(span.last->seconds() + kJournalSlackSeconds);
    }
    Add(replay::kJournalLine);
    if (trouble_.any()) return;
    trouble_.rpc = post_mortem_.Journal(run_, span, [this](const v1::JournalPart& part) {
      std::string head;
      for (const std::uint64_t number : {static_cast<std::uint64_t>(part.data().size()), replay::JournalChecksum(part.data())}) {
        for (int shift = 0; shift < 64; shift += 8) head.push_back(static_cast<char>(number >> shift));
      }
      Add(head);
      Add(part.data());
      return !trouble_.any();
    });
    EndMember(replay::kJournalMember);
  }

  // Messages as lines of JSON, in the order in which lossgauged lists them.
  template <class Request, class Response, class Item, class Items>
  void Lines(const std::string& name, ListCall<Request, Response> call, const Items& items) {
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
      request.set_first_step(FirstStep());
      request.set_last_step(LastStep());
    }
    const std::unique_ptr<StepExport> all = MakeJsonlExport(std::nullopt);
    std::map<std::uint32_t, std::unique_ptr<StepExport>> each;
    std::string bytes;
    Pages<v1::ListStepsRequest, v1::ListStepsResponse>(&v1::LossGauge::Stub::ListSteps, request, [&](const auto& page) {
      for (const v1::Step& step : page.steps()) {
        if (!ranks) {
          if (step.has_receive_time()) {
            if (!first_received_) first_received_ = step.receive_time();
            last_received_ = step.receive_time();
          }
          all->Add(step, &bytes);
          continue;
        }
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

  std::int64_t FirstStep() const { return std::max<std::int64_t>(0, incident_->onset_step() - kStepsBefore); }
  std::int64_t LastStep() const { return incident_->last_step() + kStepsAfter; }

  void Manifest(const std::string& incident_id, const std::optional<v1::Run>& run, const std::optional<v1::Policy>& policy, absl::Time now) {
    std::string text = absl::StrCat("{\"format\": ", JsonText(replay::kBundleFormat), ", \"run\": ", JsonText(run_), ", \"incident\": ", JsonText(incident_id),
                                    ", \"time\": ", JsonText(absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", now, absl::UTCTimeZone())),
                                    ", \"lossgaugectl\": ", JsonText(LOSSGAUGE_VERSION));
    if (incident_) absl::StrAppend(&text, ", \"first_step\": ", FirstStep(), ", \"last_step\": ", LastStep());
    if (run) absl::StrAppend(&text, ", \"ranks\": ", run->layout().world_size());
    if (policy) absl::StrAppend(&text, ", \"policy_version\": ", JsonText(policy->version()));
    absl::StrAppend(&text, ", \"verdict_policy_versions\": [",
                    absl::StrJoin(policies_, ", ", [](std::string* out, const std::string& version) { *out += JsonText(version); }),
                    "], \"journal\": ", has_journal_ ? "true" : "false");
    if (!has_journal_) absl::StrAppend(&text, ", \"not_judged_again\": ", JsonText(kNotJudgedAgain));
    absl::StrAppend(&text, "}\n");
    Add(text);
    EndMember("MANIFEST.json");
  }

  Connection& connection_;
  BundleWriter& writer_;
  const std::string run_;
  std::optional<v1::Incident> incident_;
  std::set<std::string> policies_;
  PostMortem post_mortem_;
  bool has_journal_ = false;
  std::optional<google::protobuf::Timestamp> first_received_, last_received_;  // of the steps
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
          .details = absl::StrCat("A tar archive with the steps (over ranks, and each rank's own), events, incidents, verdicts, the policies that judged, "
                                  "layout, the explanation, and the journal: what the judge was told, as far back as lossgauged keeps it "
                                  "(--journal_mebibytes). `replay` judges again by the journal and says whether each verdict comes out as it was given; "
                                  "without one, by the steps over ranks and the policy of now, and not: ",
                                  kNotJudgedAgain, ". With an incident: the steps from 2000 before it to 500 after it."),
          .flags = {{"output", FlagKind::kText, "FILE", "the archive; also -o FILE. Appears once it is whole"}},
          .remote = true,
          .run = Run};
}

}  // namespace lossgauge::ctl
