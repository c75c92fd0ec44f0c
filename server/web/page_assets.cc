#include "server/web/page_assets.h"

#include <algorithm>

namespace lossgauge::web {

const PageAsset* FindPageAsset(std::string_view path) {
  const std::span<const PageAsset> assets = PageAssets();
  const auto found = std::lower_bound(assets.begin(), assets.end(), path,
                                      [](const PageAsset& asset, std::string_view wanted) { return asset.path < wanted; });
  return found != assets.end() && found->path == path ? &*found : nullptr;
}

}  // namespace lossgauge::web
