#include "app/settings/arguments.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string_view>

#include "vlmtrain/base/error.h"

namespace vlmtrain::app {

namespace {

/// Parses all of `text`. Returns nothing if it is not a number.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional{number} : std::nullopt;
}

/// Parses IMAGES:SHARE. Returns nothing for invalid text.
std::optional<ImageMixComponent> parse_image_mix_component(std::string_view text) {
  const size_t colon_position = text.find(':');
  if (colon_position == std::string_view::npos) return std::nullopt;
  const auto num_images = parse_number<int64_t>(text.substr(0, colon_position));
  const auto share = parse_number<double>(text.substr(colon_position + 1));
  if (!num_images || *num_images < 0 || !share || !std::isfinite(*share) || *share <= 0) return std::nullopt;
  return ImageMixComponent{*num_images, *share};
}

}  // namespace

std::vector<ImageMixComponent> parse_image_mix(const std::string& text) {
  std::vector<ImageMixComponent> components;
  double share_sum = 0;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    const auto component = parse_image_mix_component(std::string_view(text).substr(start, end - start));
    if (!component) {
      throw usage_error(
          "--image-mix {}: must be a comma-separated list of IMAGES:SHARE, such as 1:0.5,2:0.25,3:0.25, with shares "
          "greater than 0",
          text);
    }
    if (std::ranges::find(components, component->num_images, &ImageMixComponent::num_images) != components.end()) {
      throw usage_error("--image-mix {}: lists samples of {} images twice; add up their shares", text,
                        component->num_images);
    }
    components.push_back(*component);
    share_sum += component->share;
    start = end + 1;
  }
  if (!std::isfinite(share_sum))
    throw usage_error("--image-mix {}: the sum of the shares is not finite; give smaller shares", text);
  for (auto& component : components) component.share /= share_sum;
  std::ranges::sort(components, {}, &ImageMixComponent::num_images);
  return components;
}

std::optional<std::array<int64_t, 3>> parse_volume_size(const std::string& text) {
  if (text.empty()) return std::nullopt;
  // %5ld limits each side to 99999, so the number of voxels fits an int64_t.
  long x = 0, y = 0, z = 0;  // NOLINT(google-runtime-int): the type of sscanf's %ld
  char trailing_char = 0;
  if (std::sscanf(text.c_str(), "%5ld%c", &x, &trailing_char) == 1 && x >= 1) return std::array<int64_t, 3>{x, x, x};
  if (std::sscanf(text.c_str(), "%5ldx%5ldx%5ld%c", &x, &y, &z, &trailing_char) != 3 || x < 1 || y < 1 || z < 1) {
    throw usage_error("--volume-size {}: must be XxYxZ in voxels, such as 96x96x64, or one number for all three", text);
  }
  return std::array<int64_t, 3>{x, y, z};
}

}  // namespace vlmtrain::app
