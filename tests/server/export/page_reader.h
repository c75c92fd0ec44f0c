// Reads a /metrics page back, so that tests speak of series and values.
#ifndef LOSSGAUGE_TESTS_SERVER_EXPORT_PAGE_READER_H_
#define LOSSGAUGE_TESTS_SERVER_EXPORT_PAGE_READER_H_

#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

namespace lossgauge::export_ {

class PageReader {
 public:
  // Throws if a series stands on the page twice, carries a timestamp or has a value that is not a finite number.
  explicit PageReader(const std::string& page) {
    std::istringstream lines(page);
    for (std::string line; std::getline(lines, line);) {
      if (line.empty() || line[0] == '#') continue;
      const std::size_t brace = line.rfind('}');
      const std::size_t space = line.find(' ', brace == std::string::npos ? 0 : brace);
      const std::string value = line.substr(space + 1);
      if (value.find_first_not_of("0123456789.e+-") != std::string::npos) throw std::runtime_error("not a plain number: " + line);
      if (!series_.emplace(line.substr(0, space), std::stod(value)).second) throw std::runtime_error("twice on the page: " + line);
    }
  }

  std::optional<double> Get(const std::string& series) const {
    const auto it = series_.find(series);
    if (it == series_.end()) return std::nullopt;
    return it->second;
  }
  // Number of series whose text begins so.
  std::size_t CountPrefix(const std::string& prefix) const {
    std::size_t count = 0;
    for (auto it = series_.lower_bound(prefix); it != series_.end() && it->first.compare(0, prefix.size(), prefix) == 0; ++it) ++count;
    return count;
  }
  std::size_t size() const { return series_.size(); }
  const std::map<std::string, double>& all() const { return series_; }

 private:
  std::map<std::string, double> series_;
};

}  // namespace lossgauge::export_

#endif  // LOSSGAUGE_TESTS_SERVER_EXPORT_PAGE_READER_H_
