// The words for the ring's constants, where the server shows them.
#ifndef LOSSGAUGE_SERVER_STATE_RING_NAMES_H_
#define LOSSGAUGE_SERVER_STATE_RING_NAMES_H_

#include <cstdint>

namespace lossgauge::state {

// Of LG_PHASE_*; "other" for what is not known.
const char* PhaseName(std::uint64_t phase);

// Of LG_EVENT_*; "other" for what is not known.
const char* EventName(std::uint64_t kind);

// Of LG_CALL_*; "" for LG_CALL_NONE and for what is not known.
const char* CallName(std::uint64_t call);

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_RING_NAMES_H_
