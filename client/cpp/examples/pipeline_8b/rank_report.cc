// What a rank says at its end: how its loss and gradients compare with the whole head's, and, by rank 0, what a step of all ranks took.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "client/cpp/examples/pipeline_8b/bf16.h"
#include "client/cpp/examples/pipeline_8b/rank.h"

namespace lossgauge::pipeline_8b {
namespace {

// Norm of a - b over that of b.
class Difference {
 public:
  void Add(float a, float b) {
    const double d = static_cast<double>(a) - static_cast<double>(b);
    difference_ += d * d;
    whole_ += static_cast<double>(b) * static_cast<double>(b);
  }
  double Relative() const { return difference_ == 0 ? 0 : std::sqrt(difference_ / whole_); }

 private:
  double difference_ = 0, whole_ = 0;
};

double Megabytes(std::int64_t bytes) { return static_cast<double>(bytes) / 1e6; }

}  // namespace

std::string Rank::Compare(std::int64_t step) {
  const std::int64_t tokens = options_.tokens(), width = options_.width, vocab = options_.vocab_size;
  const RankPart part = PartOf(step);
  report_.loss_difference = report_.hidden_difference = report_.head_difference = -1;
  if (!options_.check) return "";
  const auto read = [&](void* from, std::int64_t bytes) {
    std::vector<unsigned char> values(static_cast<std::size_t>(bytes));
    place_->Read(values.data(), from, bytes);
    return values;
  };
  const std::vector<unsigned char> hidden = read(grad_hidden_, tokens * width * 2), head = read(grad_head_, part.shard_columns * width * 4);
  LinearCrossEntropy whole;
  void *const weight = place_->Allocate(vocab * width * 2), *const grad_weight = place_->Allocate(vocab * width * 4);
  place_->FillHead(weight, 0, vocab, width, static_cast<std::uint64_t>(options_.seed));
  whole.args.hidden = hidden_;
  whole.args.dtype = LG_BF16;
  whole.args.rows = tokens;
  whole.args.width = width;
  whole.args.weight = weight;
  whole.args.columns = vocab;
  whole.args.chunk_rows = options_.chunk_rows;
  whole.args.grad_hidden = grad_hidden_;
  whole.args.grad_weight = grad_weight;
  whole.args.loss.targets = true_targets_;
  whole.args.loss.target_dtype = LG_INT64;
  whole.args.loss.z_loss_weight = options_.z_loss;
  whole.args.loss.denominator = static_cast<double>(labels_.unmasked);
  whole.args.loss.loss = static_cast<float*>(loss_);
  whole.args.loss.stream = place_->stream();
  whole.args.loss.threads = static_cast<std::int32_t>(options_.threads);
  const Status status = whole.Run();
  place_->Finish();
  std::string error = status.ok() ? "" : status.message();
  if (error.empty()) {
    float loss = 0;
    place_->Read(&loss, loss_, 4);
    report_.loss_difference = std::fabs(report_.loss - static_cast<double>(loss)) / std::fabs(static_cast<double>(loss));
    const std::vector<unsigned char> right_hidden = read(grad_hidden_, tokens * width * 2);
    Difference of_hidden, of_head;
    const auto* a = reinterpret_cast<const std::uint16_t*>(hidden.data());
    const auto* b = reinterpret_cast<const std::uint16_t*>(right_hidden.data());
    for (std::int64_t i = 0; i < tokens * width; ++i) of_hidden.Add(FromBf16(a[i]), FromBf16(b[i]));
    const std::vector<unsigned char> right_head =
        read(static_cast<unsigned char*>(grad_weight) + part.shard_offset * width * 4, part.shard_columns * width * 4);
    const auto* c = reinterpret_cast<const float*>(head.data());
    const auto* d = reinterpret_cast<const float*>(right_head.data());
    for (std::int64_t i = 0; i < part.shard_columns * width; ++i) of_head.Add(c[i], d[i]);
    report_.hidden_difference = of_hidden.Relative();
    report_.head_difference = of_head.Relative();
  }
  place_->Free(weight);
  place_->Free(grad_weight);
  return error;
}

std::string Rank::Tell() {
  std::vector<Report> all(static_cast<std::size_t>(options_.ranks));
  if (std::string error = exchange_->Gather(rank_, &report_, all.data(), static_cast<std::int64_t>(sizeof report_)); !error.empty()) return error;
  if (rank_ != 0) return "";
  std::printf(
      "\n| rank | step, ms | logits and loss | gradients | bare exchanges | sum of grad_hidden | publish | tensors, MB | workspace | of it logits | peak (%s) |\n",
      place_->PeakName());
  std::printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (std::size_t r = 0; r < all.size(); ++r) {
    const Report& t = all[r];
    std::printf("| %zu | %.3f | %.3f | %.3f | %.3f | %.3f | %.3f | %.2f | %.2f | %.2f | %.2f |\n", r, t.step_ms, t.loss_only_ms,
                std::max(0.0, t.call_ms - t.loss_only_ms), t.exchange_ms, t.reduce_ms, t.publish_ms, Megabytes(t.tensor_bytes), Megabytes(t.workspace_bytes),
                Megabytes(t.logits_bytes), Megabytes(t.peak_bytes));
  }
  const double all_logits = static_cast<double>(options_.tokens()) * static_cast<double>(options_.vocab_size) * 4;
  std::printf("\nall logits in fp32 would be %.2f MB, a rank's shard of them %.2f MB\n", all_logits / 1e6,
              all_logits / 1e6 / static_cast<double>(options_.ranks));
  if (report_.loss_difference >= 0) {
    double loss = 0, hidden = 0, head = 0;
    for (const Report& t : all) {
      loss = std::max(loss, t.loss_difference);
      hidden = std::max(hidden, t.hidden_difference);
      head = std::max(head, t.head_difference);
    }
    std::printf("against the whole head on one device, relative: loss %.2e, grad_hidden %.2e, grad_weight %.2e\n", loss, hidden, head);
  }
  return "";
}

}  // namespace lossgauge::pipeline_8b
