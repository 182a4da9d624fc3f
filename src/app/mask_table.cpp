#include "app/mask_table.h"

#include <fmt/format.h>

#include <map>

#include "vlmtrain/base/printable.h"

namespace vlmtrain::app {

namespace {

constexpr size_t kMaxStructureLength = 40;

std::string format_header(const char* name) {
  return fmt::format("{:<20} {:>7} {:>7} {:>7} {:>15}\n", name, "masks", "Dice", "IoU", "Hausdorff-95");
}

std::string format_row(const std::string& name, const evaluation::MaskScoreSums& sums) {
  const auto distance = sums.hausdorff95();
  return fmt::format("{:<20} {:>7} {:>7.3f} {:>7.3f} {:>15}\n", make_excerpt(name, kMaxStructureLength), sums.masks,
                     sums.dice(), sums.iou(), distance ? fmt::format("{:.2f} px", *distance) : "-");
}

std::string format_rows(const std::map<std::string, evaluation::MaskScoreSums>& groups) {
  std::string text;
  for (const auto& [name, sums] : groups) text += format_row(name, sums);
  return text;
}

}  // namespace

std::string format_mask_table(const evaluation::MaskScores& scores) {
  if (scores.total().masks == 0) return "";
  std::string text = format_header(scores.by_task().empty() ? "masks" : "masks by task");
  text += format_rows(scores.by_task()) + format_row("all", scores.total());
  if (!scores.by_structure().empty()) text += format_header("masks by structure") + format_rows(scores.by_structure());
  const auto& total = scores.total();
  if (total.empty_truths + total.empty_predictions > 0) {
    text += fmt::format(
        "{} of {} masks are empty in the data, and of {} nothing is drawn: Dice and IoU are 1 where "
        "both are so, else 0\n",
        total.empty_truths, total.masks, total.empty_predictions);
  }
  return text;
}

}  // namespace vlmtrain::app
