// train_text: an example job. It trains a real model on real text; lossgauge is the few lines of trainer.cc that mention gauge_.
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "client/cpp/examples/train_text/all_reduce.h"
#include "client/cpp/examples/train_text/flags.h"
#include "client/cpp/examples/train_text/launcher.h"
#include "client/cpp/examples/train_text/text_corpus.h"
#include "client/cpp/examples/train_text/trainer.h"

namespace {

using namespace lossgauge::train_text;

constexpr int kOk = 0, kFailed = 1, kBadFlags = 2;

int Fail(int code, const std::string& error) {
  std::fprintf(stderr, "train_text: %s\n", error.c_str());
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  std::string error;
  switch (ParseFlags({argv + 1, argv + argc}, &options, &error)) {
    case ParseResult::kHelp: std::fputs(HelpText().c_str(), stdout); return kOk;
    case ParseResult::kError: return Fail(kBadFlags, error);
    case ParseResult::kRun: break;
  }
  std::vector<std::string> files;
  if (error = ReadText(options.text, &files); !error.empty()) return Fail(kFailed, error);
  const TextCorpus corpus = BuildCorpus(files, options.vocab_size);
  const auto train_tokens = static_cast<long long>(corpus.train.tokens.size());
  if (train_tokens < options.length + 1) {
    return Fail(kFailed, "--text=" + options.text + " gives " + std::to_string(train_tokens) + " tokens; --length=" + std::to_string(options.length) +
                             " needs more");
  }
  const ModelShape shape = ShapeOf(options, corpus.vocab_size);
  auto group = RankGroup::Create(static_cast<int>(options.ranks), static_cast<std::size_t>(shape.parameter_count()),
                                 static_cast<double>(options.barrier_timeout_s), &error);
  if (!group) return Fail(kFailed, error);
  std::printf("train_text: %lld train tokens, %zu held out, vocabulary %lld, %lld parameters, %lld rank(s)\n", train_tokens,
              corpus.held_out.tokens.size(), static_cast<long long>(corpus.vocab_size), static_cast<long long>(shape.parameter_count()),
              static_cast<long long>(options.ranks));

  Start start;
  start.wall_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  start.attempt = options.attempt;
  // The launcher knows the one start time of all ranks, so it names the attempt.
  if (start.attempt.empty()) start.attempt = "start-" + std::to_string(start.wall_ns / 1'000'000);

  const auto& stop = InstallStopSignal();
  return RunRanks(group.get(), 1.0, [&](int rank) {
    Trainer trainer(options, corpus, group.get(), rank, start, &stop);
    const std::string failure = trainer.Run();
    return failure.empty() ? kOk : Fail(kFailed, "rank " + std::to_string(rank) + ": " + failure);
  });
}
