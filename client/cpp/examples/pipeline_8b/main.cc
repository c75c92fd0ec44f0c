// pipeline_8b: one step of the loss head of an 8B model, tensor-parallel: hidden states on every rank, column shards of the logits, never more than a chunk of
// them, z-loss folded in, a record of each rank's gauge for the sidecar. What it takes, and how it compares with the whole head, is printed at the end.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "client/cpp/examples/pipeline_8b/options.h"
#include "client/cpp/examples/pipeline_8b/rank.h"
#include "client/cpp/examples/train_text/all_reduce.h"
#include "client/cpp/examples/train_text/launcher.h"

namespace {

using namespace lossgauge::pipeline_8b;

constexpr int kOk = 0, kFailed = 1, kBadFlags = 2;

int Fail(int code, const std::string& error) {
  std::fprintf(stderr, "pipeline_8b: %s\n", error.c_str());
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  std::string error;
  switch (ParseFlags({argv + 1, argv + argc}, &options, &error)) {
    case ParseResult::kHelp:
      std::fputs(HelpText().c_str(), stdout);
      return kOk;
    case ParseResult::kError:
      return Fail(kBadFlags, error);
    case ParseResult::kRun:
      break;
  }
  const auto floats = static_cast<std::size_t>(std::min(options.tokens() * options.width, SharedExchange::kFloatsAtOnce));
  auto group = lossgauge::train_text::RankGroup::Create(static_cast<int>(options.ranks), floats, options.timeout_s, &error);
  if (!group) return Fail(kFailed, error);
  constexpr std::int64_t kMostOtherBytes = 4096;  // reports, NCCL's id
  auto exchange = SharedExchange::Create(group.get(), 128 + 64 * options.chunk_rows + kMostOtherBytes, &error);
  if (!exchange) return Fail(kFailed, error);
  std::string attempt = options.attempt;
  const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  if (attempt.empty()) attempt = "start-" + std::to_string(now);
  std::printf("pipeline_8b: %lld tokens (%lld x %lld), width %lld, vocabulary %lld over %lld rank(s), chunks of %lld, %s\n",
              static_cast<long long>(options.tokens()), static_cast<long long>(options.sequences), static_cast<long long>(options.length),
              static_cast<long long>(options.width), static_cast<long long>(options.vocab_size), static_cast<long long>(options.ranks),
              static_cast<long long>(options.chunk_rows), options.share_gpus ? "GPUs that ranks may share" : options.cuda ? "GPUs" : "CPU backend");
  return lossgauge::train_text::RunRanks(group.get(), 1.0, [&](int rank) {
    Rank running(options, rank, exchange.get(), attempt);
    const std::string failure = running.Run();
    return failure.empty() ? kOk : Fail(kFailed, "rank " + std::to_string(rank) + ": " + failure);
  });
}
