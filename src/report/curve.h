#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace vlmtrain::report {

/// What a curve shows of a stretch of steps.
struct CurveBin {
  double sum = 0;  ///< of value times weight
  double weight = 0;
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();

  void add(double value, double value_weight);
  void add(const CurveBin& other);
};

/// A number over the steps of a run, of which few enough stretches are kept to be drawn: each with the mean, the least
/// and the most of its steps, so that no spike is lost.
class Curve {
 public:
  /// Adds a value to a stretch; one that is not finite is left out.
  void add(size_t bin, double value, double weight = 1);
  /// Each two stretches become one.
  void merge_pairs();

  bool empty() const { return bins_.empty(); }
  /// {"mean":[…],"least":[…],"most":[…]} for `num_bins` stretches, null where one has no value; without least and most
  /// where these are the mean. `is_summed`: the sum instead of the mean, and 0 instead of null.
  std::string to_json(size_t num_bins, bool is_summed = false) const;

 private:
  std::vector<CurveBin> bins_;
};

}  // namespace vlmtrain::report
