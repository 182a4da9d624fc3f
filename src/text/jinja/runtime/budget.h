#pragma once

#include <fmt/core.h>

#include <cstddef>
#include <string>
#include <utility>

namespace vlmtrain::text::jinja {

// Limits against hostile templates. The templates of published checkpoints stay far below each
// limit. The limits on height, nesting and depth prevent stack overflows; the others bound time and
// memory. Chosen by order of magnitude, not tuned.

/// Size of the source text of a template.
inline constexpr size_t kMaxTemplateSourceBytes = size_t{4} << 20U;
/// Height of the syntax tree: nested expressions and blocks. Parser, evaluator and destructor
/// recurse once per level.
inline constexpr int kMaxTreeHeight = 250;
/// Depth of nested evaluations, including the evaluations of recursive macros.
inline constexpr int kMaxEvaluationDepth = 1000;
/// Depth of nested lists and dicts. Comparison, output and destructor recurse once per level.
inline constexpr int kMaxValueDepth = 200;
/// Number of steps of one render, see RenderBudget. Bounds the time.
inline constexpr size_t kMaxRenderSteps = 10'000'000;
/// Size of a single text or list.
inline constexpr size_t kMaxTextBytes = size_t{32} << 20U;
/// Sum of the sizes of all texts and lists that one render creates, including those that are freed.
inline constexpr size_t kMaxAllocatedBytes = size_t{512} << 20U;
/// Maximum length of range(). Source: jinja2.sandbox, MAX_RANGE.
inline constexpr size_t kMaxRangeItems = 100'000;

/// An error in the evaluation of a template. The evaluator converts it to a TemplateError with file
/// and line.
struct EvaluationError {
  std::string message;
  bool is_raised_by_template = false;  ///< whether raise_exception() of the template raised it
};

/// Returns an EvaluationError with a formatted message.
template <class... Args>
EvaluationError evaluation_error(fmt::format_string<Args...> format, Args&&... format_args) {
  return {fmt::format(format, std::forward<Args>(format_args)...)};
}

/// A counter of the work and memory of one render. Each function throws EvaluationError if a limit
/// is exceeded.
class RenderBudget {
 public:
  /// Counts `count` evaluated nodes or similar steps.
  void charge_steps(size_t count = 1) {
    num_steps_ += count;
    if (num_steps_ > kMaxRenderSteps) throw evaluation_error("rendering takes more than {} steps", kMaxRenderSteps);
  }

  /// Counts a linear pass over `num_items` bytes or items.
  void charge_scan(size_t num_items) { charge_steps(num_items / kScannedItemsPerStep); }

  /// Counts a text or list of `bytes` bytes. Call it before or after its creation.
  void charge_allocation(size_t bytes) {
    check_value_size(bytes);
    allocated_bytes_ += bytes;
    charge_scan(bytes);
    if (allocated_bytes_ > kMaxAllocatedBytes)
      throw evaluation_error("rendering creates more than {} MiB of strings and lists", kMaxAllocatedBytes >> 20U);
  }

  /// Throws if `bytes`, the size of a single text or list, exceeds kMaxTextBytes.
  static void check_value_size(size_t bytes) {
    if (bytes > kMaxTextBytes) throw evaluation_error("a string or list exceeds {} MiB", kMaxTextBytes >> 20U);
  }

 private:
  /// Bytes or items per step, because a pass over bytes or items is much cheaper than the
  /// evaluation of a node. Not tuned.
  static constexpr size_t kScannedItemsPerStep = 16;

  size_t num_steps_ = 0;
  size_t allocated_bytes_ = 0;
};

}  // namespace vlmtrain::text::jinja
