// CSV and JSON lines.
#include "server/ctl/json_writer.h"
#include "server/ctl/step_columns.h"
#include "server/ctl/step_export.h"
#include "server/replay/csv_log.h"

namespace lossgauge::ctl {
namespace {

std::string CsvCell(const ColumnValue& value) {
  if (std::holds_alternative<std::monostate>(value)) return "";
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* number = std::get_if<std::int64_t>(&value)) return std::to_string(*number);
  if (const auto* number = std::get_if<std::uint64_t>(&value)) return std::to_string(*number);
  if (const auto* number = std::get_if<double>(&value)) return NumberText(*number);
  std::string text = std::get<std::string>(value);
  // A spreadsheet would compute a text that begins so, and whoever started the job chose its name. `replay` takes the mark off again.
  if (replay::IsFormula(text)) text.insert(0, 1, replay::kNoFormula);
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted.push_back('"');
    quoted.push_back(c);
  }
  return quoted + "\"";
}

std::string JsonCell(const ColumnValue& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* number = std::get_if<std::int64_t>(&value)) return std::to_string(*number);
  if (const auto* number = std::get_if<std::uint64_t>(&value)) return std::to_string(*number);
  if (const auto* number = std::get_if<double>(&value)) return *number - *number == 0 ? NumberText(*number) : JsonText(NumberText(*number));
  return JsonText(std::get<std::string>(value));
}

// The cells of a step's row: what says which step it is, then the rank's own values, or all of the step.
class Rows : public StepExport {
 public:
  explicit Rows(std::optional<std::uint32_t> rank) : rank_(rank) {}
  void Add(const v1::Step& step, std::string* out) final {
    const v1::RankStep* own = rank_ ? FindRank(step, *rank_) : nullptr;
    if (rank_ && own == nullptr) return;
    OpenRow(out);
    if (own == nullptr) {
      for (const Column& column : StepColumns()) Cell(column.name, ValueOf(step, column), out);
    } else {
      for (const Column& column : IdentityColumns()) Cell(column.name, ValueOf(step, column), out);
      for (const Column& column : RankColumns()) Cell(column.name, ValueOf(*own, column), out);
    }
    CloseRow(step, out);
  }

 protected:
  virtual void OpenRow(std::string* out) = 0;
  virtual void Cell(const std::string& name, const ColumnValue& value, std::string* out) = 0;
  virtual void CloseRow(const v1::Step& step, std::string* out) = 0;
  const std::optional<std::uint32_t> rank_;
};

class Csv final : public Rows {
 public:
  using Rows::Rows;
  void Begin(std::string* out) override {
    OpenRow(out);
    const auto add = [&](const std::vector<Column>& columns) {
      for (const Column& column : columns) Cell(column.name, column.name, out);
    };
    if (rank_) {
      add(IdentityColumns());
      add(RankColumns());
    } else {
      add(StepColumns());
    }
    out->push_back('\n');
  }

 private:
  void OpenRow(std::string*) override { first_ = true; }
  void Cell(const std::string&, const ColumnValue& value, std::string* out) override {
    if (!first_) out->push_back(',');
    first_ = false;
    *out += CsvCell(value);
  }
  void CloseRow(const v1::Step&, std::string* out) override { out->push_back('\n'); }
  bool first_ = true;
};

class Jsonl final : public Rows {
 public:
  using Rows::Rows;
  void Begin(std::string*) override {}

 private:
  void OpenRow(std::string* out) override {
    out->push_back('{');
    first_ = true;
  }
  void Cell(const std::string& name, const ColumnValue& value, std::string* out) override {
    if (std::holds_alternative<std::monostate>(value)) return;
    Put(name, JsonCell(value), out);
  }
  void Put(const std::string& name, const std::string& json, std::string* out) {
    if (!first_) *out += ", ";
    first_ = false;
    *out += JsonText(name) + ": " + json;
  }
  void CloseRow(const v1::Step& step, std::string* out) override {
    for (const v1::ValueRange& range : step.thinned().ranges()) {
      Put(range.name() + "_min", JsonCell(range.min()), out);
      Put(range.name() + "_max", JsonCell(range.max()), out);
    }
    *out += "}\n";
  }
  bool first_ = true;
};

}  // namespace

std::unique_ptr<StepExport> MakeCsvExport(std::optional<std::uint32_t> rank) { return std::make_unique<Csv>(rank); }
std::unique_ptr<StepExport> MakeJsonlExport(std::optional<std::uint32_t> rank) { return std::make_unique<Jsonl>(rank); }

}  // namespace lossgauge::ctl
