#include "report/curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace vlmtrain::report {

namespace {

template <class GetValue>
std::string make_json_array(const std::vector<CurveBin>& bins, size_t count, double missing_value,
                            const GetValue& get_value) {
  std::string text = "[";
  for (size_t i = 0; i < count; ++i) {
    const bool has_value = i < bins.size() && bins[i].weight > 0;
    const double value = has_value ? get_value(bins[i]) : missing_value;
    if (i > 0) text += ',';
    if (std::isfinite(value)) {
      fmt::format_to(std::back_inserter(text), "{:.5g}", value);
    } else {
      text += "null";
    }
  }
  return text + "]";
}

}  // namespace

void CurveBin::add(double value, double value_weight) {
  sum += value * value_weight;
  weight += value_weight;
  min = std::min(min, value);
  max = std::max(max, value);
}

void CurveBin::add(const CurveBin& other) {
  sum += other.sum;
  weight += other.weight;
  min = std::min(min, other.min);
  max = std::max(max, other.max);
}

void Curve::add(size_t bin, double value, double weight) {
  if (!std::isfinite(value) || !(weight > 0)) return;
  if (bins_.size() <= bin) bins_.resize(bin + 1);
  bins_[bin].add(value, weight);
}

void Curve::merge_pairs() {
  for (size_t i = 0; i < bins_.size(); ++i) {
    if (i % 2 == 1) {
      bins_[i / 2].add(bins_[i]);
    } else {
      bins_[i / 2] = bins_[i];
    }
  }
  bins_.resize((bins_.size() + 1) / 2);
}

std::string Curve::to_json(size_t num_bins, bool is_summed) const {
  if (is_summed) {
    return "{\"mean\":" + make_json_array(bins_, num_bins, 0, [](const CurveBin& bin) { return bin.sum; }) + "}";
  }
  constexpr double kMissingValue = std::numeric_limits<double>::quiet_NaN();
  std::string text = "{\"mean\":" + make_json_array(bins_, num_bins, kMissingValue,
                                                    [](const CurveBin& bin) { return bin.sum / bin.weight; });
  if (std::any_of(bins_.begin(), bins_.end(),
                  [](const CurveBin& bin) { return bin.weight > 0 && bin.min < bin.max; })) {
    text +=
        ",\"least\":" + make_json_array(bins_, num_bins, kMissingValue, [](const CurveBin& bin) { return bin.min; });
    text += ",\"most\":" + make_json_array(bins_, num_bins, kMissingValue, [](const CurveBin& bin) { return bin.max; });
  }
  return text + "}";
}

}  // namespace vlmtrain::report
