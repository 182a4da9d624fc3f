#include "vlmtrain/planner/options.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "vlmtrain/base/error.h"

namespace vlmtrain::planner {

const std::vector<std::pair<std::string, Mode>>& modes() {
  static const std::vector<std::pair<std::string, Mode>> table{
      {"conservative", Mode::kConservative}, {"balanced", Mode::kBalanced}, {"aggressive", Mode::kAggressive}};
  return table;
}

std::string name_of(Mode mode) {
  for (const auto& [name, value] : modes()) {
    if (value == mode) return name;
  }
  throw InternalError("a mode without a name");
}

int64_t RecomputeOption::blocks_of(int64_t tower) const {
  VLMTRAIN_CHECK(!is_auto(), "recompute: auto is for the planner to decide");
  if (text == "none") return 0;
  if (text == "all") return tower;
  return std::min<int64_t>(std::stoll(text), tower);
}

void declare(OptionTable& table, MemoryOptions& options) {
  table.describe_section("memory",
                         "What is traded for memory. On a GPU the planner fills what is `auto` (docs/planner.md); none "
                         "of it changes loss or gradients beyond rounding.");
  table.add("memory.limit_gb", options.limit_gb,
            "Most device memory that the process may take, in GB of 10⁹ bytes. `auto`: all of the card.",
            std::optional{unless_auto(greater_than(0.0))});
  table.add_choice("memory.mode", options.mode, modes(),
                   "How much of the card a plan keeps free: conservative 10 %, balanced 5 %, aggressive 2 %.");
  const auto valid = [](const std::string& text) {
    const bool number = !text.empty() && text.size() < 7 &&
                        std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
    return text == "auto" || text == "none" || text == "all" || number;
  };
  table.add("memory.recompute", options.recompute.text,
            "Blocks of the vision tower and of the language model (each) whose activations are computed again in the "
            "backward pass instead of being kept. `auto`: as few as fit; none on the CPU.",
            std::optional{Check<std::string>{"auto, none, all or a number of blocks", valid}});
  table.add("memory.vision_tiles_per_pass", options.vision_tiles_per_pass,
            "Most tiles that the vision tower takes at a time; 0: all of a micro-batch. `auto`: all, or fewer where "
            "nothing else fits.",
            std::optional{unless_auto(at_least<int64_t>(0))});
  table.add("memory.loss_chunk_rows", options.loss_chunk_rows,
            "Most label positions whose logits exist at a time. `auto`: 1024, or fewer where nothing else fits.",
            std::optional{unless_auto(at_least<int64_t>(1))});
  table.add("memory.expandable_segments", options.expandable_segments,
            "Device memory is reserved in segments that grow, so that batches of changing size do not fragment it. "
            "false: PyTorch's fixed segments.");
}

}  // namespace vlmtrain::planner
