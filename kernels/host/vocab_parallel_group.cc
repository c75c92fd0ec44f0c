#include "kernels/host/vocab_parallel_group.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/host/error.h"
#include "kernels/host/vocab_parallel_arguments.h"

namespace lossgauge {
namespace {

using Args = lg_vocab_parallel_args;

long long Number(std::int64_t value) { return static_cast<long long>(value); }

// A receiver trusts no word of it before the tag, and no word of another call.
bool IsProven(const lg_shard_header& header, const Args& args, std::uint32_t sender, std::uint64_t salt) {
  std::uint64_t words[LG_SHARD_HEADER_BYTES / 8];
  std::memcpy(words, &header, sizeof words);
  return header.tag == lg_shard_header_tag(salt, words) && header.magic == LG_SHARD_MAGIC && header.sender == sender && header.step == args.step &&
         header.micro_batch == args.micro_batch;
}

int CheckWord(const char* function, std::int32_t sender, const char* name, std::int64_t own, std::int64_t said) {
  if (own == said) return LG_OK;
  return SetError(LG_FAILED_PRECONDITION, "%s: %s: expected the same on all ranks of the group; this rank has %lld, rank %d of the group %lld", function, name,
                  Number(own), sender, Number(said));
}

// Bits are compared: -0 and 0 give different bits to the ranks.
int CheckNumber(const char* function, std::int32_t sender, const char* name, double own, double said) {
  if (std::memcmp(&own, &said, sizeof own) == 0) return LG_OK;
  return SetError(LG_FAILED_PRECONDITION, "%s: %s: expected the same on all ranks of the group; this rank has %.17g, rank %d of the group %.17g", function, name,
                  own, sender, said);
}

int CheckHeader(const char* function, std::int32_t sender, const lg_shard_header& own, const lg_shard_header& said) {
  struct Word {
    const char* name;
    std::int64_t own, said;
  };
  const Word words[] = {
      {"layout of contributions", own.version, said.version},   {"group_size", own.group_size, said.group_size},
      {"rows", own.rows, said.rows},                             {"logits_dtype", own.logits_dtype, said.logits_dtype},
      {"vocab_size", own.vocab_size, said.vocab_size},           {"position_base", own.position_base, said.position_base},
      {"ignore_index", own.ignore_index, said.ignore_index},
  };
  for (const Word& word : words) {
    if (const int code = CheckWord(function, sender, word.name, word.own, word.said); code != LG_OK) return code;
  }
  struct Value {
    const char* name;
    double own, said;
  };
  const Value values[] = {
      {"label_smoothing", own.label_smoothing, said.label_smoothing},
      {"z_loss_weight", own.z_loss_weight, said.z_loss_weight},
      {"logit_scale", own.logit_scale, said.logit_scale},
      {"logit_softcap", own.logit_softcap, said.logit_softcap},
  };
  for (const Value& value : values) {
    if (const int code = CheckNumber(function, sender, value.name, value.own, value.said); code != LG_OK) return code;
  }
  if (said.shard_columns < 0 || said.shard_offset < 0 || said.shard_columns > own.vocab_size || said.shard_offset > own.vocab_size - said.shard_columns) {
    return SetError(LG_FAILED_PRECONDITION, "%s: shard_offset: expected columns within [0, %lld); rank %d of the group has %lld from %lld on", function,
                    Number(own.vocab_size), sender, Number(said.shard_columns), Number(said.shard_offset));
  }
  return LG_OK;
}

int CheckOwn(const char* function, std::int32_t index, const lg_shard_header& own, const lg_shard_header& said) {
  if (own.shard_offset == said.shard_offset && own.shard_columns == said.shard_columns) return LG_OK;
  return SetError(LG_FAILED_PRECONDITION,
                  "%s: args: expected those of lg_vocab_parallel_begin; contribution %d, this rank's, is of columns %lld to %lld, args are of %lld to %lld", function,
                  index, Number(said.shard_offset), Number(said.shard_offset + said.shard_columns), Number(own.shard_offset),
                  Number(own.shard_offset + own.shard_columns));
}

// The shards of all ranks cover [0, vocab_size) once.
int CheckTiling(const Args& args, const char* function, const cpu::ShardSender* senders) {
  std::vector<std::int32_t> order;
  const bool all_whole = std::all_of(senders, senders + args.group_size, [&args](const cpu::ShardSender& s) { return s.columns == args.vocab_size; });
  for (std::int32_t s = 0; s < args.group_size; ++s) {
    if (senders[s].columns > 0) order.push_back(s);
  }
  std::sort(order.begin(), order.end(), [senders](std::int32_t a, std::int32_t b) {
    return senders[a].first_column != senders[b].first_column ? senders[a].first_column < senders[b].first_column : a < b;
  });
  std::int64_t next = 0;
  for (const std::int32_t s : order) {
    if (senders[s].first_column != next) {
      return SetError(LG_FAILED_PRECONDITION,
                      "%s: shard_offset: expected the ranks' columns to cover [0, vocab_size = %lld) once; those of rank %d of the group begin at %lld, where "
                      "the columns before them end at %lld%s",
                      function, Number(args.vocab_size), s, Number(senders[s].first_column), Number(next),
                      all_whole ? "; every rank has them all, as if its logits had been gathered" : "");
    }
    next += senders[s].columns;
  }
  if (next == args.vocab_size) return LG_OK;
  return SetError(LG_FAILED_PRECONDITION, "%s: shard_columns: expected the ranks' columns to cover [0, vocab_size = %lld) once; they end at %lld", function,
                  Number(args.vocab_size), Number(next));
}

}  // namespace

int JudgeGroup(const Args& args, const unsigned char* gathered, const char* function, cpu::ShardSender* senders) {
  const lg_shard_header own = ShardHeaderOf(args);
  bool all_proven = true;
  for (std::int32_t s = 0; s < args.group_size; ++s) {
    lg_shard_header said;
    std::memcpy(&said, gathered + s * args.gathered_stride, sizeof said);
    const std::uint64_t salt = lg_shard_salt(args.step, args.micro_batch, static_cast<std::uint32_t>(s));
    senders[s] = {0, 0, salt, IsProven(said, args, static_cast<std::uint32_t>(s), salt)};
    if (!senders[s].proven) {
      all_proven = false;
      continue;
    }
    if (const int code = CheckHeader(function, s, own, said); code != LG_OK) return code;
    if (s == args.group_index) {
      if (const int code = CheckOwn(function, s, own, said); code != LG_OK) return code;
    }
    senders[s].first_column = said.shard_offset;
    senders[s].columns = said.shard_columns;
  }
  // What a rank that is not proven holds is not known.
  return all_proven ? CheckTiling(args, function, senders) : LG_OK;
}

}  // namespace lossgauge
