#include "vlmtrain/train/chat_template_date.h"

#include <gtest/gtest.h>

#include "parity/temporary_folder.h"
#include "vlmtrain/base/today.h"
#include "vlmtrain/io/atomic.h"

namespace vlmtrain::train {
namespace {

std::filesystem::path checkpoint_of(const std::filesystem::path& run, const std::string& fingerprint) {
  const auto state = run / "checkpoints" / "step-3" / "trainer_state";
  std::filesystem::create_directories(state);
  io::write_file(state / "state.json", R"({"step": 3, "epoch": 0, "position": 0, "fingerprint": )" + fingerprint + "}");
  return state.parent_path();
}

std::string date_after(const std::function<void(data::DataOptions&)>& settle) {
  data::DataOptions options;
  settle(options);
  return options.chat_template_date;
}

TEST(ChatTemplateDate, OfANewRunIsToday) {
  const parity::TemporaryFolder folder;
  EXPECT_EQ(date_after([&](auto& data) { settle_chat_template_date_of_run(data, folder.path()); }), today());
  EXPECT_EQ(date_after([&](auto& data) { settle_chat_template_date_of_run(data, ""); }), today());
}

TEST(ChatTemplateDate, OfARunThatGoesOnIsTheDayItBegan) {
  const parity::TemporaryFolder folder;
  const auto checkpoint = checkpoint_of(folder.path(), R"({"data.chat_template_date": "2025-02-03"})");
  EXPECT_EQ(date_after([&](auto& data) { settle_chat_template_date_of_run(data, folder.path()); }), "2025-02-03");
  EXPECT_EQ(date_after([&](auto& data) { settle_chat_template_date(data, checkpoint); }), "2025-02-03");
}

TEST(ChatTemplateDate, OfAnOlderRunStaysUnsaid) {
  const parity::TemporaryFolder folder;
  checkpoint_of(folder.path(), "{}");
  EXPECT_EQ(date_after([&](auto& data) { settle_chat_template_date_of_run(data, folder.path()); }), "auto");
}

TEST(ChatTemplateDate, ThatIsNamedStays) {
  data::DataOptions options;
  options.chat_template_date = "2024-01-01";
  settle_chat_template_date(options, std::nullopt);
  EXPECT_EQ(options.chat_template_date, "2024-01-01");
}

}  // namespace
}  // namespace vlmtrain::train
