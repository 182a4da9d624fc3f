#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace vlmtrain::report {

/// What a curve shows of a stretch of steps.
struct Stretch {
  double sum = 0;  ///< of value times weight
  double weight = 0;
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();

  void add(double value, double value_weight);
  void add(const Stretch& other);
};

/// A number over the steps of a run, of which few enough stretches are kept to be drawn: each with the mean, the least
/// and the most of its steps, so that no spike is lost.
class Curve {
 public:
  /// Adds a value to a stretch; one that is not finite is left out.
  void add(size_t stretch, double value, double weight = 1);
  /// Each two stretches become one.
  void halve();

  bool empty() const { return stretches_.empty(); }
  /// {"mean":[…],"least":[…],"most":[…]} for `stretches` stretches, null where one has no value; without least and most
  /// where these are the mean. `summed`: the sum instead of the mean, and 0 instead of null.
  std::string to_json(size_t stretches, bool summed = false) const;

 private:
  std::vector<Stretch> stretches_;
};

}  // namespace vlmtrain::report
