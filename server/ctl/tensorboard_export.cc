#include <string>

#include "proto/tensorboard/record_framing.h"
#include "server/ctl/step_columns.h"
#include "server/ctl/step_export.h"
#include "tensorboard/event.pb.h"

namespace lossgauge::ctl {
namespace {

class Tensorboard final : public StepExport {
 public:
  Tensorboard(std::optional<std::uint32_t> rank, double begin_seconds) : rank_(rank), begin_seconds_(begin_seconds) {}

  void Begin(std::string* out) override {
    tensorboard::Event event;
    event.set_wall_time(begin_seconds_);
    event.set_file_version("brain.Event:2");
    tensorboard::AppendRecord(event.SerializeAsString(), out);
  }

  void Add(const v1::Step& step, std::string* out) override {
    tensorboard::Event event;
    event.set_wall_time(static_cast<double>(step.receive_time().seconds()) + 1e-9 * step.receive_time().nanos());
    event.set_step(step.step());
    if (step.step() <= last_step_) {
      event.mutable_session_log()->set_status(tensorboard::SessionLog::START);
      tensorboard::AppendRecord(event.SerializeAsString(), out);
    }
    last_step_ = step.step();
    if (!rank_) {
      for (const Column& column : StepColumns()) AddValue(column, step, &event);
    } else if (const v1::RankStep* own = FindRank(step, *rank_)) {
      for (const Column& column : RankColumns()) AddValue(column, *own, &event);
    }
    if (event.what_case() != tensorboard::Event::kSummary) return;
    tensorboard::AppendRecord(event.SerializeAsString(), out);
  }

 private:
  // Values and counts; places and identities are no curves.
  static void AddValue(const Column& column, const google::protobuf::Message& message, tensorboard::Event* event) {
    if (column.path.size() != 1 || column.name == "sequence" || column.name == "step" || column.name == "rank") return;
    const ColumnValue value = ValueOf(message, column);
    const auto* measured = std::get_if<double>(&value);
    const auto* count = std::get_if<std::uint64_t>(&value);
    if (measured == nullptr && count == nullptr) return;
    auto* scalar = event->mutable_summary()->add_value();
    scalar->set_tag(column.name);
    scalar->set_simple_value(measured != nullptr ? static_cast<float>(*measured) : static_cast<float>(*count));
  }

  const std::optional<std::uint32_t> rank_;
  const double begin_seconds_;
  std::int64_t last_step_ = INT64_MIN;
};

}  // namespace

std::unique_ptr<StepExport> MakeTensorboardExport(std::optional<std::uint32_t> rank, double begin_seconds) {
  return std::make_unique<Tensorboard>(rank, begin_seconds);
}

}  // namespace lossgauge::ctl
