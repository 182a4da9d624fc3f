#include "vlmtrain/train/chat_template_date.h"

#include <gtest/gtest.h>

#include "parity/temporary_folder.h"
#include "vlmtrain/base/today.h"
#include "vlmtrain/io/atomic.h"

namespace vlmtrain::train {
namespace {

std::filesystem::path write_checkpoint(const std::filesystem::path& run, const std::string& fingerprint) {
  const auto state = run / "checkpoints" / "step-3" / "trainer_state";
  std::filesystem::create_directories(state);
  io::write_file(state / "state.json", R"({"step": 3, "epoch": 0, "position": 0, "fingerprint": )" + fingerprint + "}");
  return state.parent_path();
}

std::string resolve_date(const std::function<void(data::DataOptions&)>& resolve) {
  data::DataOptions options;
  resolve(options);
  return options.chat_template_date;
}

TEST(ChatTemplateDate, NewRunUsesCurrentDate) {
  const parity::TemporaryFolder folder;
  EXPECT_EQ(resolve_date([&](auto& data) { resolve_run_chat_template_date(data, folder.path()); }), current_date());
  EXPECT_EQ(resolve_date([&](auto& data) { resolve_run_chat_template_date(data, ""); }), current_date());
}

TEST(ChatTemplateDate, ResumedRunKeepsItsStartDate) {
  const parity::TemporaryFolder folder;
  const auto checkpoint = write_checkpoint(folder.path(), R"({"data.chat_template_date": "2025-02-03"})");
  EXPECT_EQ(resolve_date([&](auto& data) { resolve_run_chat_template_date(data, folder.path()); }), "2025-02-03");
  EXPECT_EQ(resolve_date([&](auto& data) { resolve_chat_template_date(data, checkpoint); }), "2025-02-03");
}

TEST(ChatTemplateDate, OldRunWithoutDateStaysAuto) {
  const parity::TemporaryFolder folder;
  write_checkpoint(folder.path(), "{}");
  EXPECT_EQ(resolve_date([&](auto& data) { resolve_run_chat_template_date(data, folder.path()); }), "auto");
}

TEST(ChatTemplateDate, ExplicitDateIsKept) {
  data::DataOptions options;
  options.chat_template_date = "2024-01-01";
  resolve_chat_template_date(options, std::nullopt);
  EXPECT_EQ(options.chat_template_date, "2024-01-01");
}

}  // namespace
}  // namespace vlmtrain::train
