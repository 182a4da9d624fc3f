#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <utility>

namespace vlmtrain::text::jinja {

/// Bounds of what a template may ask for; the templates that people use stay far below all of them.
inline constexpr size_t kMaxSourceBytes = size_t{4} << 20U;
inline constexpr int kMaxTreeHeight = 250;       ///< of nested expressions and blocks
inline constexpr int kMaxNesting = 1000;         ///< of evaluations, with those of the macros that call each other
inline constexpr int kMaxValueDepth = 200;       ///< lists in lists
inline constexpr size_t kMaxSteps = 10'000'000;  ///< of one render
inline constexpr size_t kMaxTextBytes = size_t{32} << 20U;
inline constexpr size_t kMaxAllocatedBytes = size_t{512} << 20U;  ///< of all texts and lists that a render makes
inline constexpr size_t kMaxRangeItems = 100'000;                 ///< as jinja2's sandbox has it

/// What went wrong while a template was rendered; the evaluator adds the file and the line.
struct EvaluationError {
  std::string message;
  bool raised_by_template = false;  ///< by raise_exception
};

template <class... Args>
EvaluationError evaluation_error(fmt::format_string<Args...> format, Args&&... format_args) {
  return {fmt::format(format, std::forward<Args>(format_args)...)};
}

/// Counts what a render takes. Throws Failure where it passes a bound.
class Budget {
 public:
  void charge_steps(size_t count = 1) {
    steps_ += count;
    if (steps_ > kMaxSteps) throw evaluation_error("the render takes more than {} steps", kMaxSteps);
  }
  /// For what goes through as many bytes or items of a value.
  void charge_scan(size_t items) { charge_steps(items / 16); }
  /// A text or list of `bytes` was made, or is about to be.
  void charge_allocation(size_t bytes) {
    check_size(bytes);
    allocated_bytes_ += bytes;
    charge_scan(bytes);
    if (allocated_bytes_ > kMaxAllocatedBytes)
      throw evaluation_error("the render makes more than {} MB of texts and lists", kMaxAllocatedBytes >> 20U);
  }
  static void check_size(size_t bytes) {
    if (bytes > kMaxTextBytes) throw evaluation_error("a text or list grows beyond {} MB", kMaxTextBytes >> 20U);
  }

 private:
  size_t steps_ = 0;
  size_t allocated_bytes_ = 0;
};

}  // namespace vlmtrain::text::jinja
