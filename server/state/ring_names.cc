#include "server/state/ring_names.h"

#include "proto/lossgauge/ring/ring_abi.h"

namespace lossgauge::state {

const char* PhaseName(std::uint64_t phase) {
  switch (phase) {
    case LG_PHASE_TRAIN: return "train";
    case LG_PHASE_WARM_UP: return "warm_up";
    case LG_PHASE_EVALUATION: return "evaluation";
    case LG_PHASE_CHECKPOINT: return "checkpoint";
    case LG_PHASE_DATA_LOADING: return "data_loading";
    default: return "other";
  }
}

const char* EventName(std::uint64_t kind) {
  switch (kind) {
    case LG_EVENT_RESUME: return "resume";
    case LG_EVENT_CHECKPOINT: return "checkpoint";
    case LG_EVENT_PHASE_BEGIN: return "phase_begin";
    case LG_EVENT_PHASE_END: return "phase_end";
    case LG_EVENT_EVALUATION: return "evaluation";
    case LG_EVENT_END: return "end";
    case LG_EVENT_NOTE: return "note";
    default: return "other";
  }
}

const char* CallName(std::uint64_t call) {
  switch (call) {
    case LG_CALL_OPEN: return "open";
    case LG_CALL_LOSS: return "loss";
    case LG_CALL_PUBLISH: return "publish";
    case LG_CALL_EVENT: return "event";
    case LG_CALL_CLOSE: return "close";
    case LG_CALL_OBSERVE: return "observe";
    default: return "";
  }
}

}  // namespace lossgauge::state
