#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "vlmtrain/memory/processor.h"

namespace vlmtrain::memory {

namespace {

// What print_cpu_kernels() adds to oneDNN's lines.
constexpr std::string_view kAtenPrefix = "aten,";
constexpr std::string_view kThreadsPrefix = "threads,";

/// What follows `marker` in the line; empty where the line has no such mark.
std::string find_suffix(const std::string& line, std::string_view marker) {
  const size_t position = line.find(marker);
  return position == std::string::npos ? std::string() : line.substr(position + marker.size());
}

std::string first_field(const std::string& text) {
  return text.substr(0, text.find(','));
}

Bf16MatmulSupport parse_bf16_support(const std::string& implementation) {
  if (implementation.find("amx") != std::string::npos) return Bf16MatmulSupport::kAmx;
  // avx512_core_bf16 and the names of later instructions that include it.
  const bool has_bf16 = implementation.find("avx512_core_bf16") != std::string::npos ||
                        implementation.find("avx512_core_fp16") != std::string::npos ||
                        implementation.find("avx10") != std::string::npos;
  return has_bf16 ? Bf16MatmulSupport::kAvx512 : Bf16MatmulSupport::kEmulated;
}

}  // namespace

const char* to_string(Bf16MatmulSupport support) {
  switch (support) {
    case Bf16MatmulSupport::kAmx:
      return "AMX";
    case Bf16MatmulSupport::kAvx512:
      return "AVX512-BF16";
    case Bf16MatmulSupport::kEmulated:
      break;
  }
  return "emulated";
}

void print_cpu_kernels() {
  setenv("ONEDNN_VERBOSE", "1", /*overwrite=*/1);
  std::printf("%s%s\n%s%d\n", std::string(kAtenPrefix).c_str(), at::get_cpu_capability().c_str(),
              std::string(kThreadsPrefix).c_str(), at::get_num_threads());
  constexpr int64_t kSize = 256;
  // oneDNN tells of itself once anything is done by it: the first is done by it on every processor.
  static_cast<void>(at::ones({kSize, kSize}).to_mkldnn());
  const at::Tensor matrix = at::ones({kSize, kSize}, at::kBFloat16);
  static_cast<void>(at::linear(matrix, matrix));
}

CpuKernels parse_cpu_kernels(const std::string& output) {
  CpuKernels kernels;
  std::istringstream lines(output);
  const auto set_if_empty = [](std::string& target, std::string value) {
    if (target.empty()) target = std::move(value);
  };
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kAtenPrefix)) kernels.aten = line.substr(kAtenPrefix.size());
    if (line.starts_with(kThreadsPrefix)) kernels.threads = std::atoi(line.c_str() + kThreadsPrefix.size());
    const std::string version = find_suffix(line, ",info,oneDNN v");
    set_if_empty(kernels.onednn_version, version.substr(0, version.find(' ')));
    set_if_empty(kernels.onednn_isa, find_suffix(line, ",info,cpu,isa:"));
    set_if_empty(kernels.bf16_product, first_field(find_suffix(line, ",exec,cpu,matmul,")));
  }
  kernels.bf16 = parse_bf16_support(kernels.bf16_product);
  return kernels;
}

}  // namespace vlmtrain::memory
