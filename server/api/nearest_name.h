// What somebody may have meant who wrote a name that there is not.
#ifndef LOSSGAUGE_SERVER_API_NEAREST_NAME_H_
#define LOSSGAUGE_SERVER_API_NEAREST_NAME_H_

#include <string>
#include <vector>

namespace lossgauge::api {

// What is nearest to `wanted` among `known`, empty if nothing is near.
std::string Nearest(const std::string& wanted, const std::vector<std::string>& known);

}  // namespace lossgauge::api

#endif  // LOSSGAUGE_SERVER_API_NEAREST_NAME_H_
