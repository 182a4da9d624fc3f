#include "vlmtrain/planner/virtual_card.h"

#include <fmt/ranges.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/program.h"
#include "vlmtrain/vgpu/counters.h"

namespace vlmtrain::planner {

namespace {

/// Set by restart_on and for rehearsal processes: this process is meant to be on a virtual card.
constexpr const char* kMeant = "VLMTRAIN_VIRTUAL_CARD";

/// In the order in which they are preloaded; libcuda.so.1 lies beside them and is found by them.
constexpr std::array kStandIns{"libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13"};

std::filesystem::path stand_ins_folder() {
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::array candidates{program / "vgpu", program.parent_path() / "vgpu",
                              program.parent_path() / "lib" / "vlmtrain" / "vgpu"};
  for (const auto& folder : candidates) {
    if (std::filesystem::exists(folder / kStandIns.front())) return folder;
  }
  throw run_error(
      "the stand-ins for the CUDA libraries are missing: no {} in {} or {}; build them with the program (cmake --build "
      "--preset release), or copy the folder vgpu beside it",
      kStandIns.front(), candidates.front().string(), candidates.back().string());
}

}  // namespace

std::vector<std::pair<std::string, std::string>> environment_of(const VirtualCard& card) {
  const auto folder = stand_ins_folder();
  std::vector<std::string> preload;
  // What a user preloads stays, and first: a sanitizer's runtime insists on that.
  if (const char* const others = std::getenv("LD_PRELOAD"); others != nullptr && *others != '\0') {
    preload.emplace_back(others);
  }
  for (const char* name : kStandIns) preload.push_back((folder / name).string());
  return {{"LD_PRELOAD", fmt::format("{}", fmt::join(preload, ":"))},
          {"VLMTRAIN_VGPU_CARD", card.gpu},
          {"VLMTRAIN_VGPU_BYTES", card.memory_bytes ? std::to_string(*card.memory_bytes) : ""},
          {"VLMTRAIN_VGPU_REPORTED_BYTES", card.reported_bytes ? std::to_string(*card.reported_bytes) : ""},
          {"VLMTRAIN_VGPU_USED_BYTES", std::to_string(card.used_bytes)},
          {kMeant, "1"}};
}

bool on_virtual_card() {
  return vgpu::attached() != nullptr;
}

void restart_on(const VirtualCard& card) {
  for (const auto& [name, value] : environment_of(card)) setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  restart_program();
  throw run_error("this program cannot be started again on a virtual card: {}", std::strerror(errno));
}

void refuse_stand_ins() {
  if (on_virtual_card() && std::getenv(kMeant) == nullptr) {
    throw usage_error(
        "the stand-ins for the CUDA libraries are preloaded, so there is no real card in this process; take them out "
        "of "
        "LD_PRELOAD, or ask for a virtual card with --device virtual:{}",
        vgpu::attached()->card());
  }
}

}  // namespace vlmtrain::planner
