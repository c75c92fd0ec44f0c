#include "kernels/cuda/shard_arguments.h"

#include "kernels/cuda/device_arguments.h"
#include "kernels/host/error.h"
#include "kernels/host/tensor_span.h"
#include "kernels/host/vocab_parallel_arguments.h"

namespace lossgauge::cuda {

int CheckShardDevices(const lg_vocab_parallel_args& args, const void* exchanged, const char* name, int ordinal, const char* function) {
  if (ordinal < 0) return SetError(LG_INVALID_ARGUMENT, "%s: logits: expected memory of a device, where loss is, got host memory", function);
  if (args.loss.rows > 0) {
    const auto bytes = static_cast<unsigned>(BytesOfType(args.loss.logits_dtype));
    if (const int code = CheckTensor({"logits", args.loss.logits, bytes}, ordinal, name, function); code != LG_OK) return code;
  }
  if (const int code = CheckTensor({name, exchanged, 16}, ordinal, "logits", function); code != LG_OK) return code;
  if (const int code = CheckDevices(args.loss, ordinal, function); code != LG_OK) return code;
  return CheckShardSizes(args, function);
}

int CheckShardSizes(const lg_vocab_parallel_args& args, const char* function) {
  if (args.group_size > kMostRanks) {
    return SetError(LG_INVALID_ARGUMENT, "%s: group_size: expected at most %d on a device, got %d", function, kMostRanks, args.group_size);
  }
  if (args.vocab_size > (1ll << 30)) {
    return SetError(LG_INVALID_ARGUMENT, "%s: vocab_size: expected at most 2^30 on a device, got %lld", function, static_cast<long long>(args.vocab_size));
  }
  return LG_OK;
}

ShardLaunch MakeShardLaunch(const lg_vocab_parallel_args& args) {
  ShardLaunch launch{};
  launch.loss = MakeLaunch(args.loss, LossPurpose::kForward);
  launch.loss.present |= LG_HAS_EXCHANGE;
  launch.own = ShardHeaderOf(args);
  return launch;
}

}  // namespace lossgauge::cuda
