#include "io/record/loss_weight.h"

#include <charconv>
#include <optional>
#include <string>
#include <utility>

#include "io/record/json_values.h"
#include "io/record/keys/key_rules.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::io {

/// The smallest weight above 0. Squares of its gradients stay within fp32's range.
constexpr double kMinLossWeight = 1e-6;

std::optional<double> parse_fraction(const RecordJson& value) {
  double fraction = -1;
  if (value.is_number()) fraction = value.get<double>();
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    const char* const end = text.data() + text.size();
    const auto [parsed_end, error] = std::from_chars(text.data(), end, fraction);
    if (error != std::errc() || parsed_end != end) return std::nullopt;
  }
  const bool is_fraction = fraction >= 0 && fraction <= 1;  // false for NaN
  return is_fraction ? std::optional(fraction) : std::nullopt;
}

float parse_loss_weight(const RecordJson& turn, size_t turn_number) {
  bool is_learned = true;
  std::optional<std::pair<std::string, double>> fraction;  // key and value
  for (auto entry = turn.begin(); entry != turn.end(); ++entry) {
    const KeyRule rule = get_key_rule(KeyScope::kTurn, entry.key());
    if ((rule != KeyRule::kLossMask && rule != KeyRule::kInverseLossMask) || is_blank(*entry)) continue;
    if (const auto value = parse_switch(*entry)) {
      is_learned = is_learned && *value == (rule == KeyRule::kLossMask);
      continue;
    }
    const auto value = rule == KeyRule::kLossMask ? parse_fraction(*entry) : std::nullopt;
    if (!value) {
      throw data_error(
          "turn {} has \"{}\": {}, which is not {}; masks of parts are not supported; write \"loss\": true, false or a "
          "number from 0 to 1 into each answer, or set {}=[{}] to learn all of it",
          turn_number, make_excerpt(entry.key()), make_value_excerpt(*entry),
          rule == KeyRule::kLossMask ? "true, false or a number from 0 to 1" : "true (1) or false (0)",
          keys::data::kIgnoreKeys, make_excerpt(entry.key()));
    }
    if (*value > 0 && *value < kMinLossWeight) {
      throw data_error("turn {} has \"{}\": {}, less than {}; write 0, or a larger weight", turn_number,
                       make_excerpt(entry.key()), *value, kMinLossWeight);
    }
    if (fraction && fraction->second != *value) {
      throw data_error("turn {} has \"{}\": {} and \"{}\": {}, which differ; keep one, or set {}=[{}]", turn_number,
                       fraction->first, fraction->second, entry.key(), *value, keys::data::kIgnoreKeys, entry.key());
    }
    fraction = {entry.key(), *value};
  }
  return is_learned ? static_cast<float>(fraction ? fraction->second : 1.0) : 0.0F;
}

}  // namespace vlmtrain::io
