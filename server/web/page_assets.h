// The files of the status page, in the binary: lossgauged needs no directory beside it and loads nothing from elsewhere.
// The bytes are made at build time from server/web/page by its embed_assets.mjs; all of it is constant, so any thread may read it.
#ifndef LOSSGAUGE_SERVER_WEB_PAGE_ASSETS_H_
#define LOSSGAUGE_SERVER_WEB_PAGE_ASSETS_H_

#include <span>
#include <string_view>

namespace lossgauge::web {

struct PageAsset {
  std::string_view path;          // as asked for: "/" is the page itself, the rest lies under "/page/"
  std::string_view content_type;  // with its charset where it is text
  std::string_view etag;          // strong, quoted: from the content's SHA-256, so that it changes with the content only
  std::string_view bytes;
};

// Sorted by path.
std::span<const PageAsset> PageAssets();

// nullptr if there is no such asset. `path` without query; no decoding is done, none of our names needs it.
const PageAsset* FindPageAsset(std::string_view path);

// The page is written for this Content-Security-Policy: nothing from elsewhere, no inline script or style, not framed.
inline constexpr std::string_view kPageContentSecurityPolicy =
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'";

}  // namespace lossgauge::web

#endif  // LOSSGAUGE_SERVER_WEB_PAGE_ASSETS_H_
