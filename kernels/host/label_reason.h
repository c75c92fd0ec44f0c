// What a position of packed documents is asked for, and why not. One rule for the host and for a device.
#ifndef LOSSGAUGE_KERNELS_HOST_LABEL_REASON_H_
#define LOSSGAUGE_KERNELS_HOST_LABEL_REASON_H_

#include <stdint.h>

#include "kernels/include/lossgauge/lossgauge.h"
#include "proto/lossgauge/ring/ring_abi.h"

#if defined(__CUDACC__)
#define LG_ON_BOTH __host__ __device__
#else
#define LG_ON_BOTH
#endif

namespace lossgauge {

// Places in lg_pack_labels_args.counts; the first that holds.
enum LabelReason { kLastOfDocument, kPadding, kPrompt, kUnmasked, kLabelReasons };

// Token and Length: int or long long. Lengths may be anything: no read leaves the arguments' arrays.
template <class Token, class Length>
class PackedDocuments {
 public:
  LG_ON_BOTH explicit PackedDocuments(const lg_pack_labels_args& args)
      : a_(args),
        tokens_(static_cast<const Token*>(args.tokens)),
        bounds_(static_cast<const Length*>(args.cu_seqlens)),
        prompts_(static_cast<const Length*>(args.prompt_lengths)) {}

  // The document of position t: the first that ends behind it; `documents` if there is none.
  LG_ON_BOTH long long OwnerOf(long long t) const {
    long long low = 0, high = a_.documents;
    while (low < high) {
      const long long middle = low + (high - low) / 2;
      if (bounds_[middle + 1] > t) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

  LG_ON_BOTH LabelReason ReasonOf(long long t, long long owner) const {
    const long long next = t + 1;
    if (next >= a_.count) return owner < a_.documents ? kLastOfDocument : kPadding;  // nothing to be asked for
    if (owner < a_.documents && next == bounds_[owner + 1]) return kLastOfDocument;
    if (owner >= a_.documents || (a_.has_pad != 0 && tokens_[next] == a_.pad)) return kPadding;
    if (prompts_ != nullptr && prompts_[owner] > next - bounds_[owner]) return kPrompt;
    return kUnmasked;
  }

  LG_ON_BOTH int64_t LabelOf(long long t, LabelReason reason) const { return reason == kUnmasked ? static_cast<int64_t>(tokens_[t + 1]) : a_.ignore_index; }

 private:
  const lg_pack_labels_args& a_;
  const Token* tokens_;
  const Length* bounds_;
  const Length* prompts_;
};

}  // namespace lossgauge

#undef LG_ON_BOTH

#endif  // LOSSGAUGE_KERNELS_HOST_LABEL_REASON_H_
