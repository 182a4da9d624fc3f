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

// What tell_cpu_kernels() adds to oneDNN's lines.
constexpr std::string_view kAten = "aten,";
constexpr std::string_view kThreads = "threads,";

/// What follows `mark` in the line; empty where the line has no such mark.
std::string behind(const std::string& line, std::string_view mark) {
  const size_t place = line.find(mark);
  return place == std::string::npos ? std::string() : line.substr(place + mark.size());
}

std::string first_field(const std::string& text) {
  return text.substr(0, text.find(','));
}

Bf16Products kind_of(const std::string& implementation) {
  if (implementation.find("amx") != std::string::npos) return Bf16Products::kAmx;
  // avx512_core_bf16 and the names of later instructions that include it.
  const bool has_bf16 = implementation.find("avx512_core_bf16") != std::string::npos ||
                        implementation.find("avx512_core_fp16") != std::string::npos ||
                        implementation.find("avx10") != std::string::npos;
  return has_bf16 ? Bf16Products::kAvx512 : Bf16Products::kEmulated;
}

}  // namespace

const char* name_of(Bf16Products products) {
  switch (products) {
    case Bf16Products::kAmx:
      return "AMX";
    case Bf16Products::kAvx512:
      return "AVX512-BF16";
    case Bf16Products::kEmulated:
      break;
  }
  return "emulated";
}

void tell_cpu_kernels() {
  setenv("ONEDNN_VERBOSE", "1", /*overwrite=*/1);
  std::printf("%s%s\n%s%d\n", std::string(kAten).c_str(), at::get_cpu_capability().c_str(),
              std::string(kThreads).c_str(), at::get_num_threads());
  constexpr int64_t kSide = 256;
  // oneDNN tells of itself once anything is done by it: the first is done by it on every processor.
  static_cast<void>(at::ones({kSide, kSide}).to_mkldnn());
  const at::Tensor matrix = at::ones({kSide, kSide}, at::kBFloat16);
  static_cast<void>(at::linear(matrix, matrix));
}

CpuKernels read_cpu_kernels(const std::string& told) {
  CpuKernels kernels;
  std::istringstream lines(told);
  const auto take = [](std::string& into, std::string found) {
    if (into.empty()) into = std::move(found);
  };
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kAten)) kernels.aten = line.substr(kAten.size());
    if (line.starts_with(kThreads)) kernels.threads = std::atoi(line.c_str() + kThreads.size());
    const std::string version = behind(line, ",info,oneDNN v");
    take(kernels.onednn_version, version.substr(0, version.find(' ')));
    take(kernels.onednn_isa, behind(line, ",info,cpu,isa:"));
    take(kernels.bf16_product, first_field(behind(line, ",exec,cpu,matmul,")));
  }
  kernels.bf16 = kind_of(kernels.bf16_product);
  return kernels;
}

}  // namespace vlmtrain::memory
