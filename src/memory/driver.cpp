#include "vlmtrain/memory/driver.h"

#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string_view>
#include <utility>

#include "memory/driver_library.h"

namespace vlmtrain::memory {

namespace {

constexpr int kNeededVersion = 13000;  // CUDA 13.0, as cuDriverGetVersion counts

// Results of cuInit (cuda.h), of which each has another remedy.
constexpr int kNoDevice = 100;
constexpr int kInvalidDevice = 101;

struct InitFailure {
  int code;
  const char* reason;
  const char* name = "fails";
};

constexpr std::array kInitFailures{
    InitFailure{2, "the card or the host has no memory left for it; see what nvidia-smi lists", "no memory"},
    InitFailure{34,
                "libcuda.so.1 is the toolkit's stub and no driver; take the folder \"stubs\" out of LD_LIBRARY_PATH"},
    InitFailure{46, "the card is taken by another process (nvidia-smi -q -d COMPUTE shows its compute mode)"},
    InitFailure{304, "the operating system refuses access to the card's device files; see ls -l /dev/nvidia*",
                "no permission"},
    InitFailure{800, "access is not permitted; in SLURM ask for a card with --gres=gpu:1", "no permission"},
    InitFailure{802, "the machine's cards are not ready; start nvidia-fabricmanager, or wait until it has started"},
    InitFailure{803, "the driver's library and the kernel's module are of different versions; restart the machine"},
    InitFailure{804, "the compatibility libraries do not serve this card; take cuda-compat out of LD_LIBRARY_PATH"},
    InitFailure{805,
                "the MPS server does not answer; start nvidia-cuda-mps-control -d, or unset CUDA_MPS_PIPE_DIRECTORY"},
    InitFailure{999, "the kernel's module does not answer; try nvidia-smi, and sudo nvidia-modprobe -u"},
};

/// nvidia0, nvidia1, …: a card's own, other than nvidiactl.
bool is_card_file(const std::string& name) {
  constexpr std::string_view kPrefix = "nvidia";
  return name.starts_with(kPrefix) && name.size() > kPrefix.size() &&
         std::all_of(name.begin() + kPrefix.size(), name.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

std::vector<std::filesystem::path> entries(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) paths.push_back(*entry);
  std::ranges::sort(paths);
  return paths;
}

bool machine_has_cards(const DriverPlaces& places) {
  const auto files = entries(places.devices);
  return !entries(places.proc / "gpus").empty() ||
         std::ranges::any_of(files, [](const auto& path) { return is_card_file(path.filename().string()); });
}

struct Trouble {
  std::string name;
  std::string reason;
};

/// Why a card that the machine has is not seen.
Trouble why_not_seen(const DriverPlaces& places) {
  bool any_file = false;
  for (const auto& path : entries(places.devices)) {
    const std::string name = path.filename().string();
    if (!is_card_file(name) && name != "nvidiactl" && name != "nvidia-uvm") continue;
    any_file |= is_card_file(name);
    if (access(path.c_str(), R_OK | W_OK) != 0) {
      return {"no permission",
              fmt::format("permission denied for {}; join the group that owns it, or in SLURM ask for a card with "
                          "--gres=gpu:1",
                          path.string())};
    }
  }
  if (!any_file) {
    return {"no device files",
            fmt::format("this machine has a card, but no file of it in {}; start the container with --nv (Apptainer) "
                        "or --gpus all (Docker), or in SLURM ask for a card with --gres=gpu:1",
                        places.devices.string())};
  }
  return {"not granted",
          "this machine has a card, but this process may not use it; in SLURM or Kubernetes ask for one (--gres=gpu:1, "
          "nvidia.com/gpu: 1)"};
}

DriverAnswer absent(std::string name, std::string reason) {
  return {.state = DriverState::kAbsent, .name = std::move(name), .reason = std::move(reason), .cards = {}};
}

DriverAnswer unusable(std::string name, std::string reason) {
  return {.state = DriverState::kUnusable, .name = std::move(name), .reason = std::move(reason), .cards = {}};
}

DriverAnswer no_device(const DriverPlaces& places, int code) {
  if (!machine_has_cards(places)) {
    return absent("no card", "the driver's library is here, but no card");
  }
  if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr) {
    const std::string_view text = visible;
    if (text.empty() || text.starts_with("-1")) {
      return {.state = DriverState::kHidden,
              .name = "hidden",
              .reason = fmt::format("CUDA_VISIBLE_DEVICES={} hides every GPU", text),
              .cards = {}};
    }
    return unusable("names no card",
                    fmt::format("CUDA_VISIBLE_DEVICES={} names no GPU that this process may use; nvidia-smi -L lists "
                                "those of the machine",
                                text));
  }
  auto [name, reason] = why_not_seen(places);
  return unusable(std::move(name), fmt::format("no GPU is visible (cuInit: error {}): {}", code, reason));
}

DriverAnswer init_failure(int code) {
  const auto* const known = std::ranges::find(kInitFailures, code, &InitFailure::code);
  const bool is_known = known != kInitFailures.end();
  return unusable(is_known ? known->name : "fails",
                  fmt::format("the driver cannot be used (cuInit: error {}): {}", code,
                              is_known ? known->reason : "see what nvidia-smi says"));
}

std::string too_old(int version, const DriverPlaces& places) {
  const std::string module = module_version(places);
  return fmt::format(
      "the NVIDIA driver{} is too old: it serves CUDA {}.{}, this program needs CUDA 13, driver {} or newer; update "
      "the "
      "driver (on data centre cards the package cuda-compat-13-0 does without)",
      module.empty() ? "" : " " + module, version / 1000, version % 1000 / 10, kOldestDriver);
}

std::optional<DriverCard> describe_card(const DriverLibrary& driver, int index) {
  constexpr int kMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and …MINOR
  constexpr int kMinor = 76;
  int device = 0;
  int major = 0;
  int minor = 0;
  std::array<char, 256> name{};
  if (driver.call("cuDeviceGet", &device, index) != 0 ||
      driver.call("cuDeviceGetName", name.data(), static_cast<int>(name.size() - 1), device) != 0 ||
      driver.call("cuDeviceGetAttribute", &major, kMajor, device) != 0 ||
      driver.call("cuDeviceGetAttribute", &minor, kMinor, device) != 0) {
    return std::nullopt;
  }
  return DriverCard{.name = name.data(), .architecture = 10 * major + minor};
}

DriverAnswer without_library(const DriverPlaces& places, const std::string& reason) {
  // What is not there at all; anything else, such as a library of another architecture, is a fault to mend.
  const bool missing = reason.starts_with(places.library.string() + ": cannot open shared object file");
  if (!missing) return unusable("broken library", fmt::format("the driver's library cannot be loaded: {}", reason));
  const std::string module = module_version(places);
  if (module.empty()) return {};
  return absent("no library",
                fmt::format("the machine has an NVIDIA driver ({}), but its library libcuda.so.1 is not to be found "
                            "here; start a container with --nv (Apptainer) or --gpus all (Docker)",
                            module));
}

}  // namespace

std::string module_version(const DriverPlaces& places) {
  std::ifstream file(places.proc / "version");
  // NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue …
  for (std::string word; file >> word;) {
    const bool number = std::ranges::all_of(word, [](unsigned char c) { return std::isdigit(c) != 0 || c == '.'; });
    if (number && word.find('.') != std::string::npos) return word;
  }
  return "";
}

bool has_kernel_code(int architecture) {
  // What LibTorch's wheel for CUDA 13 is compiled for; a test of the virtual GPU asks the library itself.
  constexpr std::array kMachineCode{75, 80, 86, 90, 100, 120};
  return std::ranges::any_of(kMachineCode,
                             [&](int code) { return code / 10 == architecture / 10 && code <= architecture; });
}

std::string without_code(const DriverCard& card) {
  return fmt::format(
      "LibTorch for CUDA 13 has no code for {} (compute capability {}.{}), but for 7.5 (Turing: T4, RTX 20) to 9.0, 10 "
      "and 12: take another card",
      card.name, card.architecture / 10, card.architecture % 10);
}

DriverAnswer probe_driver(const DriverPlaces& places) {
  void* const loaded = dlopen(places.library.c_str(), RTLD_NOW);
  if (loaded == nullptr) {
    const char* const reason = dlerror();
    return without_library(places, reason != nullptr ? reason : "unknown reason");
  }
  const DriverLibrary driver(loaded);
  // The version first: an old driver is to be named even where it has other troubles.
  int version = 0;
  if (driver.call("cuDriverGetVersion", &version) == 0 && version > 0 && version < kNeededVersion &&
      machine_has_cards(places)) {
    return unusable("too old", too_old(version, places));
  }
  const int error = driver.call("cuInit", 0U);
  if (error == DriverLibrary::kMissing)
    return unusable("broken library", "libcuda.so.1 has no function cuInit: it is not a driver's");
  if (error == kNoDevice || error == kInvalidDevice) return no_device(places, error);
  if (error != 0) return init_failure(error);
  if (version < kNeededVersion) return unusable("too old", too_old(version, places));
  int count = 0;
  if (driver.call("cuDeviceGetCount", &count) != 0 || count == 0) return no_device(places, kNoDevice);
  DriverAnswer answer{.state = DriverState::kUsable, .name = "usable", .reason = {}, .cards = {}};
  for (int index = 0; index < count; ++index) {
    const auto card = describe_card(driver, index);
    if (!card)
      return unusable("fails", fmt::format("the driver does not describe GPU {}; see what nvidia-smi says", index));
    answer.cards.push_back(*card);
  }
  return answer;
}

}  // namespace vlmtrain::memory
