// One value of a running lossgauged's /metrics.
#ifndef LOSSGAUGE_TESTS_SERVER_MAIN_PAGE_VALUE_H_
#define LOSSGAUGE_TESTS_SERVER_MAIN_PAGE_VALUE_H_

#include <string>

#include "server/transport/httplib.h"

namespace lossgauge::testing {

inline int PortOf(const std::string& address) { return std::stoi(address.substr(address.rfind(':') + 1)); }

// `client`: of httplib. `series`: the whole of its line but the value, as the page has it. -1 if it is not there, or nobody answers.
template <typename Client>
double PageValue(Client* client, const std::string& series) {
  const auto page = client->Get("/metrics");
  if (!page) return -1;
  const std::size_t at = page->body.find("\n" + series + " ");
  return at == std::string::npos ? -1 : std::stod(page->body.substr(at + series.size() + 2));
}
inline double PageValue(int http_port, const std::string& series) {
  httplib::Client client("127.0.0.1", http_port);
  return PageValue(&client, series);
}

}  // namespace lossgauge::testing

#endif  // LOSSGAUGE_TESTS_SERVER_MAIN_PAGE_VALUE_H_
