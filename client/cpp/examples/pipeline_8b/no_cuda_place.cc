#include "client/cpp/examples/pipeline_8b/place.h"

namespace lossgauge::pipeline_8b {

std::unique_ptr<Place> MakeCudaPlace(const Options&, int, SharedExchange*, std::string* error) {
  *error = "--cuda: this build has no CUDA";
  return nullptr;
}

}  // namespace lossgauge::pipeline_8b
