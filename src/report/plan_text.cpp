#include "vlmtrain/report/plan_text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "report/plan_bars.h"
#include "report/plan_memory.h"
#include "report/plan_table.h"
#include "report/plan_words.h"
#include "report/wrapped_text.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::report {

namespace {

constexpr size_t kMostAlternatives = 15;
constexpr int kFewestColumns = 64;
constexpr int kMostColumns = 100;

// ANSI: select graphic rendition.
constexpr const char* kPlain = "0";
constexpr const char* kBold = "1";
constexpr const char* kFaint = "2";
constexpr const char* kRed = "31";
constexpr const char* kGreen = "32";
constexpr const char* kBoldGreen = "1;32";
constexpr const char* kBoldRed = "1;31";

class Writer {
 public:
  Writer(const planner::Plan& plan, const TextStyle& style)
      : plan_(plan), style_(style), columns_(std::clamp(style.width, kFewestColumns, kMostColumns)) {}

  std::string text() {
    text_ = painted(plan_.fits ? kBoldGreen : kBoldRed, wrapped("", plan_headline(plan_), columns_));
    facts();
    memory();
    alternatives();
    suggestions();
    effort();
    return std::move(text_);
  }

 private:
  /// Escape sequences end before the line break that `text` may end with.
  std::string painted(const char* colour, const std::string& text) const {
    if (!style_.colour || colour == kPlain) return text;
    const bool ends_line = text.ends_with('\n');
    const std::string line = ends_line ? text.substr(0, text.size() - 1) : text;
    return fmt::format("\x1b[{}m{}\x1b[0m{}", colour, line, ends_line ? "\n" : "");
  }

  void heading(const std::string& title) {
    text_ += "\n";
    text_ += painted(kBold, wrapped("", title, columns_));
  }

  void facts() {
    text_ += "\n";
    for (const auto& fact : plan_facts(plan_)) {
      text_ += wrapped(fmt::format("  {:<8} ", fact.name), fact.text, columns_);
    }
  }

  void memory() {
    constexpr int kBesideBars = 36;
    const auto& peak = plan_.detail.peak;
    heading(fmt::format("Memory when most is taken: {}", place_words(peak.place, peak.backward)));
    const auto rows = memory_rows(plan_);
    BarScale scale{.bytes = 0, .columns = columns_ - kBesideBars, .unicode = style_.unicode};
    for (const auto& row : rows) scale.bytes += row.bytes;
    card_mark(scale);
    int64_t offset = 0;
    int colour = 0;
    for (const auto& row : rows) {
      if (row.kind != MemoryRow::Kind::kUsed && offset == plan_.total_bytes()) total_row();
      memory_row(row, offset, row.kind == MemoryRow::Kind::kUsed ? kBarColours[colour++ % kBarColours.size()] : kFaint,
                 scale);
      offset += row.bytes;
    }
  }

  /// Over the bars, where the card ends: they go on behind it if the plan does not fit.
  void card_mark(const BarScale& scale) {
    const int end = static_cast<int>(static_cast<double>(plan_.limit.card_bytes) / static_cast<double>(scale.bytes) *
                                     scale.columns);
    std::string mark = fmt::format("card {} |", gigabytes(plan_.limit.card_bytes));
    if (end < text_columns(mark)) mark = fmt::format("| card {}", gigabytes(plan_.limit.card_bytes));
    const int indent = mark.front() == '|' ? std::max(0, end - 1) : end - text_columns(mark);
    text_ += painted(kFaint, fmt::format("{:{}}{}\n", "", kBarIndent + indent, mark));
  }

  void memory_row(const MemoryRow& row, int64_t offset, const char* colour, const BarScale& scale) {
    const BarFill fill = row.kind == MemoryRow::Kind::kUsed   ? BarFill::kSolid
                         : row.kind == MemoryRow::Kind::kFree ? BarFill::kLight
                                                              : BarFill::kMedium;
    std::string bar = draw_bar(offset, row.bytes, fill, scale);
    bar.erase(bar.find_last_not_of(' ') + 1);
    text_ += fmt::format("  {:<22} {:>8}", row.name, gigabytes(row.bytes));
    if (!bar.empty()) text_ += fmt::format("  {}", painted(colour, bar));
    text_ += "\n";
  }

  void total_row() {
    text_ += painted(kBold, fmt::format("  {:<22} {:>8}\n", "in use", gigabytes(plan_.total_bytes())));
  }

  void alternatives() {
    const auto table = alternatives_table(plan_, kMostAlternatives, columns_);
    heading(fmt::format("Alternatives (micro-batch x accumulation; {} vision and {} language blocks)",
                        plan_.detail.vision_blocks, plan_.detail.language_blocks));
    text_ += painted(kFaint, fmt::format("{}\n", table.header));
    bool interpolated = false;
    for (const auto& line : table.lines) {
      text_ += painted(line.chosen ? kBold : line.fits ? kPlain : kFaint, fmt::format("{}\n", line.text));
      interpolated = interpolated || !line.rehearsed;
    }
    const auto note = [&](const char* mark, const std::string& text) {
      text_ += painted(kFaint, wrapped(mark, text, columns_));
    };
    if (!table.chosen_differs.empty()) note("> ", fmt::format("has {}", table.chosen_differs));
    if (interpolated) note("~ ", "interpolated between rehearsals; the others were rehearsed");
    if (table.left_out > 0) note("  ", fmt::format("{} more rows: --json", table.left_out));
  }

  void suggestions() {
    if (plan_.suggestions.empty()) return;
    const bool pasted = std::any_of(plan_.suggestions.begin(), plan_.suggestions.end(),
                                    [](const auto& suggestion) { return !suggestion.arguments.empty(); });
    heading(fmt::format("{}{}", plan_.fits ? "What would make it faster" : "What would make it fit",
                        pasted ? " (put one line behind the command)" : ""));
    for (const auto& suggestion : plan_.suggestions) {
      const char* const colour = plan_.fits ? kPlain : suggestion.makes_it_fit ? kGreen : kRed;
      if (suggestion.arguments.empty()) {
        const char* const mark = suggestion.makes_it_fit ? "  + " : "  - ";
        text_ += painted(colour, wrapped(mark, printable(suggestion.note), columns_));
      } else {
        // A line of its own and unbroken, to be copied.
        text_ +=
            painted(colour, fmt::format("  {}\n", printable(fmt::format("{}", fmt::join(suggestion.arguments, " ")))));
        text_ += painted(kFaint, wrapped("      ", printable(suggestion.note), columns_));
      }
    }
  }

  void effort() {
    const std::string note = fmt::format(
        "Found in {} with {} rehearsals on a virtual card. Step times are predicted from counted operations, not "
        "measured.",
        seconds_words(plan_.effort.seconds), plan_.effort.rehearsals);
    text_ += "\n";
    text_ += painted(kFaint, wrapped("", note, columns_));
  }

  static constexpr int kBarIndent = 35;
  static constexpr std::array kBarColours{"34", "36", "35", "32", "33", "31", "90", "90", "90", "90", "90"};

  const planner::Plan& plan_;
  const TextStyle& style_;
  int columns_;
  std::string text_;
};

}  // namespace

std::string plan_text(const planner::Plan& plan, const TextStyle& style) {
  return Writer(plan, style).text();
}

std::string remark_text(const std::string& remark, const TextStyle& style) {
  return wrapped("", remark, std::clamp(style.width, kFewestColumns, kMostColumns));
}

}  // namespace vlmtrain::report
