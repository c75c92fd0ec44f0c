#include "server/web/plain_page.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "server/api/convert_verdict.h"

namespace lossgauge::web {
namespace {

constexpr int kMaxPastRuns = 100;  // more are read nowhere without a search; JSON has them

std::string Escaped(std::string_view text_untrusted) {
  std::string escaped;
  for (const char c : text_untrusted) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      case '\'': escaped += "&#39;"; break;
      default: escaped += c;
    }
  }
  return escaped;
}

std::string Cell(const std::string& html) { return absl::StrCat("<td role=\"cell\">", html, "</td>"); }

std::string Name(const std::string& run_untrusted) {
  return absl::StrCat("<th scope=\"row\" role=\"rowheader\">", run_untrusted.empty() ? "(no name)" : Escaped(run_untrusted),
                      "</th>");
}

std::string Clock(std::int64_t seconds) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromUnixSeconds(seconds), absl::UTCTimeZone());
}

// On a narrow screen each run is a block, in which a figure needs its name beside it.
std::string NamedCell(const char* name, const std::string& html) { return absl::StrCat("<td role=\"cell\" data-name=\"", name, "\">", html, "</td>"); }

std::string Figure(bool present, double value) { return present ? absl::StrFormat("%.4g", value) : std::string("–"); }

std::string Incidents(const v1::Run& run) {
  std::string text;
  for (const v1::Incident& incident : run.open_incidents()) {
    if (!incident.hidden_by().empty()) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", incident.condition(), incident.kind().empty() ? "" : "/", incident.kind(), " since step ",
                    incident.onset_step());
  }
  return text.empty() ? "none" : Escaped(text);
}

std::string Row(const v1::Run& run) {
  const v1::Step& step = run.last_step();
  const std::string action = run.ended() ? "ended" : api::ActionName(run.verdict().action());
  return absl::StrCat("<tr role=\"row\">", Name(run.run()), Cell(absl::StrCat("<b>", action, "</b>")),
                      Cell(Escaped(run.verdict().reason())), NamedCell("Step", run.has_last_step() ? absl::StrCat(step.step()) : "–"),
                      NamedCell("Loss (nats/token)", Figure(step.has_loss_nats(), step.loss_nats())),
                      NamedCell("Perplexity", Figure(step.has_perplexity(), step.perplexity())), NamedCell("Open incidents", Incidents(run)), "</tr>\n");
}

// When the newest verdict was given: a table that somebody printed, or whose refresh fails, says of when it is.
std::string AsOf(const v1::ListRunsResponse& runs) {
  std::int64_t newest = 0;
  for (const v1::Run& run : runs.runs()) newest = std::max<std::int64_t>(newest, run.verdict().evaluated_at().seconds());
  return newest == 0 ? "" : absl::StrCat(", as of ", Clock(newest));
}

std::string PastRuns(const v1::ListRunsResponse& runs) {
  if (runs.past_runs().empty()) return "";
  const int listed = std::min(runs.past_runs_size(), kMaxPastRuns);
  std::string html = absl::StrCat(
      "<div class=\"plain-runs\" tabindex=\"0\" role=\"group\" aria-label=\"Earlier runs\"><table role=\"table\">\n"
      "<caption>Earlier runs, newest first",
      listed < runs.past_runs_size() ? absl::StrCat(": ", listed, " of ", runs.past_runs_size()) : "",
      "</caption>\n<thead role=\"rowgroup\"><tr role=\"row\"><th scope=\"col\" role=\"columnheader\">Run</th>"
      "<th scope=\"col\" role=\"columnheader\">Last written</th></tr></thead>\n<tbody role=\"rowgroup\">\n");
  for (int i = 0; i < listed; ++i) {
    const v1::PastRun& run = runs.past_runs(i);
    const std::string written = run.has_last_write_time() ? Clock(run.last_write_time().seconds()) : "–";
    absl::StrAppend(&html, "<tr role=\"row\">", Name(run.run()), NamedCell("Last written", written), "</tr>\n");
  }
  return html + "</tbody>\n</table></div>\n";
}

}  // namespace

std::string PlainPage(const v1::ListRunsResponse& runs, bool history_read) {
  std::vector<const v1::Run*> sorted;
  for (const v1::Run& run : runs.runs()) sorted.push_back(&run);
  const auto place = [](const v1::Run& run) { return std::tuple(run.ended(), api::Urgency(run.verdict().action()), run.run()); };
  std::sort(sorted.begin(), sorted.end(), [&](const v1::Run* a, const v1::Run* b) { return place(*a) < place(*b); });
  std::string page =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<meta http-equiv=\"refresh\" content=\"10\">\n<title>lossgauge: runs</title>\n"
      "<link rel=\"icon\" href=\"/page/icon.svg\" type=\"image/svg+xml\">\n<link rel=\"stylesheet\" href=\"/page/style.css\">\n</head>\n<body>\n"
      "<header class=\"top\"><h1>lossgauge</h1></header>\n<main>\n";
  if (sorted.empty()) {
    absl::StrAppend(&page, "<p class=\"plain\">", runs.past_runs().empty() ? "No run yet." : "No run is live.",
                    " A job that opens a gauge in the ring directory appears here by itself.</p>\n");
  } else {
    absl::StrAppend(&page, "<div class=\"plain-runs\" tabindex=\"0\" role=\"group\" aria-label=\"Runs\"><table role=\"table\">\n<caption>Runs, worst verdict first", AsOf(runs),
                    "</caption>\n<thead role=\"rowgroup\"><tr role=\"row\">");
    for (const char* column : {"Run", "Verdict", "Reason", "Step", "Loss (nats/token)", "Perplexity", "Open incidents"}) {
      absl::StrAppend(&page, "<th scope=\"col\" role=\"columnheader\">", column, "</th>");
    }
    page += "</tr></thead>\n<tbody role=\"rowgroup\">\n";
    for (const v1::Run* run : sorted) page += Row(*run);
    page += "</tbody>\n</table></div>\n";
  }
  page += history_read ? PastRuns(runs) : "<p class=\"plain\">Earlier runs cannot be listed just now.</p>\n";
  page +=
      "<p class=\"plain\">This table needs no JavaScript and is fetched again every 10 s. With JavaScript: <a href=\"/\">curves, incidents, ranks</a>. "
      "The same data: <a href=\"/api/v1/runs?include_past=true\">JSON</a>, <a href=\"/metrics\">metrics</a>.</p>\n</main>\n</body>\n</html>\n";
  return page;
}

}  // namespace lossgauge::web
