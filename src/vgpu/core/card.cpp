#include "vgpu/core/card.h"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "vgpu/core/report.h"

namespace vlmtrain::vgpu {

namespace {

std::string_view get_env(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

/// `default_value` if it is not set; nothing if it is not a number of `unit`.
template <class Number>
std::optional<Number> parse_number_env(const char* name, Number default_value, const char* unit) {
  const std::string_view text = get_env(name);
  if (text.empty()) return default_value;
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= 0) return value;
  report({name, "=", text, " is not a number of ", unit, ": there is no device"});
  return std::nullopt;
}

std::optional<uint64_t> parse_bytes_env(const char* name, uint64_t default_value) {
  return parse_number_env(name, default_value, "bytes");
}

std::optional<ModuleLoadCost> read_module_load_cost() {
  const auto module_bytes = parse_bytes_env("VLMTRAIN_VGPU_MODULE_BYTES", 0);
  const auto module_seconds = parse_number_env("VLMTRAIN_VGPU_MODULE_SECONDS", 0.0, "seconds");
  if (!module_bytes || !module_seconds) return std::nullopt;
  return ModuleLoadCost{*module_bytes, *module_seconds};
}

const memory::Gpu* find_configured_gpu() {
  const std::string_view name = get_env("VLMTRAIN_VGPU_CARD");
  const memory::Gpu* const gpu = memory::find_gpu(name.empty() ? "h100" : name);
  if (gpu != nullptr) return gpu;
  std::string names;
  for (const auto& listed_gpu : memory::gpus()) names.append(" ").append(listed_gpu.name);
  report({"VLMTRAIN_VGPU_CARD=", name, " is unknown: there is no device; known are", names});
  return nullptr;
}

std::optional<VirtualGpu> read_environment() {
  const memory::Gpu* const base_gpu = find_configured_gpu();
  if (base_gpu == nullptr) return std::nullopt;
  const auto memory_bytes = parse_bytes_env("VLMTRAIN_VGPU_BYTES", static_cast<uint64_t>(base_gpu->memory_bytes));
  const auto reported_bytes = parse_bytes_env("VLMTRAIN_VGPU_REPORTED_BYTES", memory_bytes.value_or(0));
  const auto used_bytes = parse_bytes_env("VLMTRAIN_VGPU_USED_BYTES", 0);
  const auto multiprocessors =
      parse_number_env("VLMTRAIN_VGPU_MULTIPROCESSORS", base_gpu->multiprocessors, "multiprocessors");
  const auto architecture = parse_number_env("VLMTRAIN_VGPU_ARCHITECTURE", base_gpu->architecture, "an architecture");
  const auto module_load_cost = read_module_load_cost();
  if (!memory_bytes || !reported_bytes || !used_bytes || !multiprocessors || !architecture || !module_load_cost) {
    return std::nullopt;
  }
  memory::Gpu gpu = memory::scale_multiprocessors(*base_gpu, *multiprocessors);
  gpu.architecture = *architecture;
  memory::Architecture limits = memory::architecture(*architecture);
  limits.number = *architecture;
  return VirtualGpu{gpu, limits, *memory_bytes, *reported_bytes, *used_bytes, *module_load_cost};
}

}  // namespace

const VirtualGpu* virtual_gpu() {
  static const std::optional<VirtualGpu> configured = read_environment();
  return configured ? &*configured : nullptr;
}

}  // namespace vlmtrain::vgpu
