// History for RPC threads, over a read-only connection of its own.
#ifndef LOSSGAUGE_SERVER_STATE_STORE_READ_H_
#define LOSSGAUGE_SERVER_STATE_STORE_READ_H_

#include <memory>
#include <string>

#include "server/state/store.h"

namespace lossgauge::state {

std::shared_ptr<HistoryReader> MakeHistoryReader(const std::string& path);

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_STORE_READ_H_
