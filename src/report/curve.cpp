#include "report/curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace vlmtrain::report {

namespace {

template <class ValueOf>
std::string json_array(const std::vector<Stretch>& stretches, size_t count, double nothing, const ValueOf& value_of) {
  std::string text = "[";
  for (size_t i = 0; i < count; ++i) {
    const bool known = i < stretches.size() && stretches[i].weight > 0;
    const double value = known ? value_of(stretches[i]) : nothing;
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

void Stretch::add(double value, double value_weight) {
  sum += value * value_weight;
  weight += value_weight;
  least = std::min(least, value);
  most = std::max(most, value);
}

void Stretch::add(const Stretch& other) {
  sum += other.sum;
  weight += other.weight;
  least = std::min(least, other.least);
  most = std::max(most, other.most);
}

void Curve::add(size_t stretch, double value, double weight) {
  if (!std::isfinite(value) || !(weight > 0)) return;
  if (stretches_.size() <= stretch) stretches_.resize(stretch + 1);
  stretches_[stretch].add(value, weight);
}

void Curve::halve() {
  for (size_t i = 0; i < stretches_.size(); ++i) {
    if (i % 2 == 1) {
      stretches_[i / 2].add(stretches_[i]);
    } else {
      stretches_[i / 2] = stretches_[i];
    }
  }
  stretches_.resize((stretches_.size() + 1) / 2);
}

std::string Curve::to_json(size_t stretches, bool summed) const {
  if (summed) {
    return "{\"mean\":" + json_array(stretches_, stretches, 0, [](const Stretch& stretch) { return stretch.sum; }) +
           "}";
  }
  constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();
  std::string text = "{\"mean\":" + json_array(stretches_, stretches, kNothing,
                                               [](const Stretch& stretch) { return stretch.sum / stretch.weight; });
  if (std::any_of(stretches_.begin(), stretches_.end(),
                  [](const Stretch& stretch) { return stretch.weight > 0 && stretch.least < stretch.most; })) {
    text += ",\"least\":" +
            json_array(stretches_, stretches, kNothing, [](const Stretch& stretch) { return stretch.least; });
    text +=
        ",\"most\":" + json_array(stretches_, stretches, kNothing, [](const Stretch& stretch) { return stretch.most; });
  }
  return text + "}";
}

}  // namespace vlmtrain::report
