#include "planner/nonnegative_fit.h"

#include <algorithm>
#include <cmath>

#include "vlmtrain/base/error.h"

namespace vlmtrain::planner {

namespace {

constexpr int64_t kMostSweeps = 20'000;
constexpr double kSettled = 1e-10;  // change of a coefficient, relative to the largest

}  // namespace

std::vector<double> nonnegative_fit(const std::vector<std::vector<double>>& rows, const std::vector<double>& values,
                                    const std::vector<double>& weights) {
  VLMTRAIN_CHECK(!rows.empty() && rows.size() == values.size() && rows.size() == weights.size(),
                 "{} rows, {} values, {} weights", rows.size(), values.size(), weights.size());
  const size_t columns = rows.front().size();
  std::vector<double> scale(columns, 0);
  for (const auto& row : rows) {
    for (size_t column = 0; column < columns; ++column) scale[column] = std::max(scale[column], std::abs(row[column]));
  }
  // Normal equations: `square` is symmetric, gradient = square · x − target.
  std::vector<std::vector<double>> square(columns, std::vector<double>(columns, 0));
  std::vector<double> gradient(columns, 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t column = 0; column < columns; ++column) {
      if (scale[column] == 0) continue;
      const double element = weights[i] * rows[i][column] / scale[column];
      gradient[column] -= element * values[i];
      for (size_t other = 0; other < columns; ++other) {
        if (scale[other] > 0) square[column][other] += element * rows[i][other] / scale[other];
      }
    }
  }
  std::vector<double> x(columns, 0);
  for (int64_t sweep = 0; sweep < kMostSweeps; ++sweep) {
    double change = 0;
    double most = 0;
    for (size_t column = 0; column < columns; ++column) {
      if (square[column][column] <= 0) continue;
      const double next = std::max(0.0, x[column] - gradient[column] / square[column][column]);
      const double step = next - x[column];
      x[column] = next;
      for (size_t other = 0; step != 0 && other < columns; ++other) gradient[other] += step * square[other][column];
      change = std::max(change, std::abs(step));
      most = std::max(most, next);
    }
    if (change <= kSettled * most) break;
  }
  for (size_t column = 0; column < columns; ++column) {
    if (scale[column] > 0) x[column] /= scale[column];
  }
  return x;
}

}  // namespace vlmtrain::planner
