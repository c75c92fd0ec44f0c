// A run as bytes in the store: everything that must outlive a restart but the judge (which saves itself) and the history. Versioned; a
// decoder refuses what it does not know. Samples that wait for their step are not in it: cursors stand before them.
#ifndef LOSSGAUGE_SERVER_STATE_RUN_CODEC_H_
#define LOSSGAUGE_SERVER_STATE_RUN_CODEC_H_

#include <string>
#include <string_view>

#include "server/state/run.h"

namespace lossgauge::state {

class RunCodec {
 public:
  static std::string Encode(const Run& run);
  // False if the bytes are not ours; the run is then as before.
  static bool Decode(std::string_view bytes, Run* run, TimeNs now_ns);

  // CursorRow::totals of a segment.
  static std::string EncodeSlotTotals(const ProducerSlot& slot);
  static bool DecodeSlotTotals(std::string_view bytes, ProducerSlot* slot);
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_RUN_CODEC_H_
