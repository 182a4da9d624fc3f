#include "vlmtrain/memory/driver.h"

#include <fmt/ranges.h>

#include <cstdlib>

#include "app/doctor/examinations.h"
#include "vlmtrain/base/bytes.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/planner/virtual_card.h"

namespace vlmtrain::app {

namespace {

/// Less is taken by the context and the libraries' workspaces alone.
constexpr int64_t kLeastFreeBytes = 1'000'000'000;

/// What the driver reads that makes a run slow.
constexpr const char* kSlowing = "CUDA_LAUNCH_BLOCKING";

void look_at_environment(Section& section, const Question& question) {
  auto& facts = section.facts["environment"];
  facts = question.foreign_settings;
  for (const char* const name : {"CUDA_VISIBLE_DEVICES", kSlowing}) {
    if (const char* const value = std::getenv(name)) facts.push_back(fmt::format("{}={}", name, value));
  }
  if (!question.foreign_settings.empty()) {
    section.note(
        fmt::format("{} in the environment: a run ignores it, since its memory is planned without; take it out, or say "
                    "it in the configuration (memory.expandable_segments, memory.limit_gb)",
                    fmt::join(question.foreign_settings, ", ")));
  }
  if (const char* const value = std::getenv(kSlowing); value != nullptr && std::string_view(value) == "1") {
    section.note(fmt::format("{}=1 in the environment: each kernel is waited for, which is slow; unset it", kSlowing));
  }
}

/// A card that this process sees.
class VisibleCard {
 public:
  VisibleCard(int index, const memory::DriverCard& card)
      : index_(index), card_(card), room_(memory::room_on_card(index)) {}

  nlohmann::ordered_json facts() const {
    return {{"index", index_},
            {"name", card_.name},
            {"compute_capability", capability()},
            {"mig", is_part()},
            {"has_code", memory::has_kernel_code(card_.architecture)},
            {"total_bytes", room_.total_bytes},
            {"free_bytes", room_.free_bytes},
            {"error", room_.error}};
  }

  /// The case of docs/doctor.md.
  std::string name() const {
    if (!memory::has_kernel_code(card_.architecture)) return "no code";
    if (is_full()) return "no memory";
    return is_part() ? "MIG" : "usable";
  }

  void examine(Section& section, Severity on_trouble) const {
    if (!memory::has_kernel_code(card_.architecture)) {
      return section.add(on_trouble, fmt::format("GPU {}: {}", index_, memory::without_code(card_)));
    }
    const std::string free =
        fmt::format("{:.1f} of {:.1f} GB free", in_gigabytes(room_.free_bytes), in_gigabytes(room_.total_bytes));
    if (is_full()) {
      return section.add(
          on_trouble,
          fmt::format("{}: {}, since other processes hold its memory (nvidia-smi lists them): wait for them, or take "
                      "another card with CUDA_VISIBLE_DEVICES",
                      words(), free));
    }
    if (room_.error != 0) {
      return section.note(fmt::format("{}: the driver does not tell its memory (error {})", words(), room_.error));
    }
    constexpr double kOwnShare = 0.1;
    const auto used = static_cast<double>(room_.total_bytes - room_.free_bytes);
    if (used > kOwnShare * static_cast<double>(room_.total_bytes)) {
      return section.note(
          fmt::format("{}, {}: other processes hold much of it; a run plans with what is left", words(), free));
    }
    section.ok(fmt::format("{}, {}", words(), free));
  }

 private:
  bool is_part() const { return card_.name.find(" MIG ") != std::string::npos; }
  bool is_full() const {
    if (room_.error != 0) return room_.error == memory::kDriverOutOfMemory;
    return room_.free_bytes < kLeastFreeBytes;
  }
  std::string capability() const { return fmt::format("{}.{}", card_.architecture / 10, card_.architecture % 10); }
  std::string words() const {
    return fmt::format("GPU {}: {}, compute capability {}{}", index_, card_.name, capability(),
                       is_part() ? ", a part of a card (MIG), planned as what it is" : "");
  }

  int index_;
  memory::DriverCard card_;
  memory::CardRoom room_;
};

void examine_cards(Section& section, const Question& question, const std::vector<memory::DriverCard>& cards) {
  const int wanted = memory::cuda_index(question.device).value_or(0);
  for (int index = 0; index < std::ssize(cards); ++index) {
    const VisibleCard card(index, cards[static_cast<size_t>(index)]);
    section.facts["cards"].push_back(card.facts());
    const bool is_needed = index == wanted && question.device != "cpu";
    card.examine(section, is_needed ? Severity::kMend : Severity::kNote);
    if (index == wanted) section.facts["case"] = card.name();
  }
  if (wanted >= std::ssize(cards)) {
    section.mend(fmt::format("--device {}: only {} GPUs are usable (nvidia-smi -L, CUDA_VISIBLE_DEVICES)",
                             question.device, cards.size()));
  }
  if (question.device != "cpu") section.facts["device"] = fmt::format("cuda:{}", wanted);
}

/// Where no card can be had.
void examine_absence(Section& section, const Question& question, const memory::DriverAnswer& driver) {
  const bool is_expected = driver.state != memory::DriverState::kUnusable && driver.reason.empty();
  const std::string reason = is_expected ? "no NVIDIA driver is here (no libcuda.so.1)" : driver.reason;
  const bool is_refused = driver.state == memory::DriverState::kUnusable && question.device == "auto";
  if (question.device.starts_with("cuda") || is_refused) {
    return section.mend(fmt::format("{}; or train without it: --device cpu", reason));
  }
  const std::string words = question.device == "auto" ? reason + ": training is on the CPU" : reason;
  section.add(is_expected ? Severity::kOk : Severity::kNote, words);
}

}  // namespace

Section examine_driver(const Question& question) {
  const Examination examination{.name = "driver",
                                .doing = "asking the driver",
                                .remedy = "see what nvidia-smi and dmesg say, or train without it: --device cpu",
                                .on_failure = question.device == "cpu" ? Severity::kNote : Severity::kMend};
  return examine_apart(examination, [&](Section& section) {
    section.facts = {{"case", "not asked"}, {"device", "cpu"}, {"cards", nlohmann::ordered_json::array()}};
    if (question.is_virtual()) {
      section.facts["device"] = question.device;
      section.ok("a virtual card needs no driver");
      return look_at_environment(section, question);
    }
    planner::refuse_stand_ins();
    const auto driver = memory::probe_driver();
    section.facts["case"] = driver.name;
    section.facts["reason"] = driver.reason;
    section.facts["module_version"] = memory::module_version();
    if (driver.state == memory::DriverState::kUsable) {
      examine_cards(section, question, driver.cards);
    } else {
      examine_absence(section, question, driver);
    }
    look_at_environment(section, question);
  });
}

}  // namespace vlmtrain::app
