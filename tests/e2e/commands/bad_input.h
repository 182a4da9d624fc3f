#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "e2e/command.h"

namespace vlmtrain::e2e {

/// User errors: the exit code identifies who can fix them, the message how.
class BadInputTest : public CommandTest {
 protected:
  void expect_error(const Result& result, int exit_code, const std::vector<std::string>& messages) const {
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_THAT(result.out, testing::IsEmpty());
    for (const auto& message : messages) EXPECT_THAT(result.err, testing::HasSubstr(message));
    EXPECT_THAT(result.err, testing::Not(testing::HasSubstr("internal error")));
  }

  void expect_refused(const std::vector<std::string>& overrides, int exit_code,
                      const std::vector<std::string>& messages) const {
    expect_error(train(overrides), exit_code, messages);
    EXPECT_FALSE(std::filesystem::exists(folder() / "run/checkpoints")) << "training started";
  }

  /// Returns a copy of the checkpoint to damage.
  std::filesystem::path damaged_checkpoint() const {
    std::filesystem::copy(checkpoint(), folder() / "damaged", std::filesystem::copy_options::recursive);
    return folder() / "damaged";
  }

  void change_json(const std::filesystem::path& file, const std::function<void(nlohmann::json&)>& change) const {
    auto json = nlohmann::json::parse(read_text(file));
    change(json);
    write_text(file, json.dump());
  }

  /// Rewrites the header of the damaged checkpoint's weights and keeps the data.
  void change_header(const std::function<void(nlohmann::ordered_json&)>& change) const {
    const auto file = damaged_checkpoint() / "model.safetensors";
    const std::string content = read_text(file);
    uint64_t length = 0;
    std::memcpy(&length, content.data(), sizeof(length));
    auto header = nlohmann::ordered_json::parse(content.substr(sizeof(length), length));
    change(header);
    const std::string text = header.dump();
    const uint64_t new_length = text.size();
    write_text(file, std::string(reinterpret_cast<const char*>(&new_length), sizeof(new_length)) + text +
                         content.substr(sizeof(length) + length));
  }

  nlohmann::json only_bad(const std::string& id, const nlohmann::json& images, const std::string& question) const {
    auto all = records();
    all.push_back({{"id", id},
                   {"image", images},
                   {"conversations",
                    {{{"from", "human"}, {"value", question}}, {{"from", "gpt"}, {"value", "I cannot tell."}}}}});
    return all;
  }

  void truncate_image() const {
    const std::string original = read_text(folder() / "images/strip.jpg");
    write_text(folder() / "images/cut.jpg", original.substr(0, original.size() / 2));
  }
};

}  // namespace vlmtrain::e2e
