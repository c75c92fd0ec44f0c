#include "server/web/page_assets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace lossgauge::web {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(PageAssets, ThePageItselfLiesAtTheRoot) {
  const PageAsset* page = FindPageAsset("/");
  ASSERT_NE(page, nullptr);
  EXPECT_EQ(page->content_type, "text/html; charset=utf-8");
  EXPECT_TRUE(page->bytes.starts_with("<!doctype html>"));
}

TEST(PageAssets, WhatIsNotThereIsNotFound) {
  for (const char* path : {"", "/page", "/page/", "/page/../", "/index.html", "/page/none.js"}) EXPECT_EQ(FindPageAsset(path), nullptr) << path;
}

TEST(PageAssets, EachIsFoundByItsPathAndHasItsOwnTag) {
  std::set<std::string> tags;
  for (const PageAsset& asset : PageAssets()) {
    EXPECT_EQ(FindPageAsset(asset.path), &asset);
    EXPECT_FALSE(asset.bytes.empty()) << asset.path;
    EXPECT_FALSE(asset.content_type.empty()) << asset.path;
    EXPECT_EQ(asset.etag.size(), 34u) << asset.path;
    EXPECT_EQ(asset.etag.front(), '"');
    EXPECT_EQ(asset.etag.back(), '"');
    tags.insert(std::string(asset.etag));
  }
  EXPECT_EQ(tags.size(), PageAssets().size());
}

TEST(PageAssets, EverythingThatThePageLoadsIsThere) {
  const std::string page(FindPageAsset("/")->bytes);
  for (const char* path : {"/page/app.js", "/page/style.css", "/page/icon.svg", "/page/uplot/uplot.css"}) {
    EXPECT_THAT(page, HasSubstr(path));
    EXPECT_NE(FindPageAsset(path), nullptr) << path;
  }
  EXPECT_NE(FindPageAsset("/page/uplot/uplot.js"), nullptr);
}

TEST(PageAssets, NothingIsLoadedFromElsewhereOrInline) {
  for (const PageAsset& asset : PageAssets()) {
    if (asset.path.starts_with("/page/uplot/") || asset.path.ends_with(".svg")) continue;
    if (asset.content_type.starts_with("text/plain")) continue;  // is read, loads nothing
    const std::string text(asset.bytes);
    EXPECT_THAT(text, Not(HasSubstr("https://"))) << asset.path;
    EXPECT_THAT(text, Not(HasSubstr("innerHTML"))) << asset.path;
    EXPECT_THAT(text, Not(HasSubstr(" style=\""))) << asset.path;
    EXPECT_THAT(text, Not(HasSubstr("<script>"))) << asset.path;
  }
}

TEST(PageAssets, RunbooksAreThereAsTextThatABrowserShows) {
  const PageAsset* runbook = FindPageAsset("/page/runbooks/LossgaugeLossSpike.md");
  ASSERT_NE(runbook, nullptr);
  EXPECT_EQ(runbook->content_type, "text/plain; charset=utf-8");
  EXPECT_THAT(std::string(runbook->bytes), HasSubstr("## Mitigation"));
}

TEST(PageAssets, ThePlottingLibraryComesWithItsLicence) {
  const PageAsset* licence = FindPageAsset("/page/uplot/license.txt");
  ASSERT_NE(licence, nullptr);
  EXPECT_THAT(std::string(licence->bytes), HasSubstr("MIT License"));
}

}  // namespace
}  // namespace lossgauge::web
