#include "vgpu/core/card.h"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "vgpu/core/report.h"

namespace vlmtrain::vgpu {

namespace {

std::string_view setting(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

/// `otherwise` if it is not set; nothing if it is not a number of `what`.
template <class Number>
std::optional<Number> number_setting(const char* name, Number otherwise, const char* what) {
  const std::string_view text = setting(name);
  if (text.empty()) return otherwise;
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= 0) return value;
  report({name, "=", text, " is not a number of ", what, ": there is no device"});
  return std::nullopt;
}

std::optional<uint64_t> bytes_setting(const char* name, uint64_t otherwise) {
  return number_setting(name, otherwise, "bytes");
}

std::optional<Habits> habits() {
  const auto module_bytes = bytes_setting("VLMTRAIN_VGPU_MODULE_BYTES", 0);
  const auto module_seconds = number_setting("VLMTRAIN_VGPU_MODULE_SECONDS", 0.0, "seconds");
  if (!module_bytes || !module_seconds) return std::nullopt;
  return Habits{*module_bytes, *module_seconds};
}

const memory::Gpu* chosen_gpu() {
  const std::string_view name = setting("VLMTRAIN_VGPU_CARD");
  const memory::Gpu* const gpu = memory::find_gpu(name.empty() ? "h100" : name);
  if (gpu != nullptr) return gpu;
  std::string known;
  for (const auto& other : memory::gpus()) known.append(" ").append(other.name);
  report({"VLMTRAIN_VGPU_CARD=", name, " is unknown: there is no device; known are", known});
  return nullptr;
}

std::optional<Card> from_environment() {
  const memory::Gpu* const known = chosen_gpu();
  if (known == nullptr) return std::nullopt;
  const auto memory_bytes = bytes_setting("VLMTRAIN_VGPU_BYTES", static_cast<uint64_t>(known->memory_bytes));
  const auto reported_bytes = bytes_setting("VLMTRAIN_VGPU_REPORTED_BYTES", memory_bytes.value_or(0));
  const auto used_bytes = bytes_setting("VLMTRAIN_VGPU_USED_BYTES", 0);
  const auto multiprocessors =
      number_setting("VLMTRAIN_VGPU_MULTIPROCESSORS", known->multiprocessors, "multiprocessors");
  const auto architecture = number_setting("VLMTRAIN_VGPU_ARCHITECTURE", known->architecture, "an architecture");
  const auto chosen_habits = habits();
  if (!memory_bytes || !reported_bytes || !used_bytes || !multiprocessors || !architecture || !chosen_habits) {
    return std::nullopt;
  }
  memory::Gpu gpu = memory::with_multiprocessors(*known, *multiprocessors);
  gpu.architecture = *architecture;
  memory::Architecture limits = memory::architecture(*architecture);
  limits.number = *architecture;
  return Card{gpu, limits, *memory_bytes, *reported_bytes, *used_bytes, *chosen_habits};
}

}  // namespace

const Card* card() {
  static const std::optional<Card> chosen = from_environment();
  return chosen ? &*chosen : nullptr;
}

}  // namespace vlmtrain::vgpu
