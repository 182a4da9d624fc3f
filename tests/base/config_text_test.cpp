#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <fstream>

#include "base/options/reader.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"

namespace vlmtrain {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ConfigTextTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "vlmtrain_config_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path path(const std::string& name) const { return folder_ / name; }
  std::filesystem::path put(std::string_view content) const {
    std::ofstream(path("config.yaml"), std::ios::binary) << content;
    return path("config.yaml");
  }
  std::filesystem::path put_socket() const {
    const int socket_descriptor = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    std::strncpy(address.sun_path, path("socket").c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(socket_descriptor, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    close(socket_descriptor);
    return path("socket");
  }

  static std::string get_error(const std::filesystem::path& path) {
    try {
      read_config_text(path);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return {};
  }

 private:
  std::filesystem::path folder_;
};

TEST_F(ConfigTextTest, SkipsAByteOrderMark) {
  EXPECT_EQ(read_config_text(put("a: 1\n")), "a: 1\n");
  EXPECT_EQ(read_config_text(put("\xEF\xBB\xBF"
                                 "a: 1\n")),
            "a: 1\n");
}

TEST_F(ConfigTextTest, RefusesUtf16) {
  using std::string_view_literals::operator""sv;
  for (const auto text : {"\xFF\xFE"
                          "a\0"sv,
                          "\xFE\xFF"
                          "\0a"sv}) {
    EXPECT_THAT(get_error(put(text)), AllOf(HasSubstr("UTF-16"), HasSubstr("iconv -f UTF-16 -t UTF-8")));
  }
}

TEST_F(ConfigTextTest, RefusesSpecialFilesWithoutOpening) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(get_error(path("pipe")), AllOf(HasSubstr("pipe: is a named pipe"), HasSubstr("/dev/stdin")));
  EXPECT_THAT(get_error(put_socket()), HasSubstr("is a socket"));
  EXPECT_THAT(get_error("/dev/zero"), HasSubstr("is a device"));
  EXPECT_THAT(get_error(path("")), HasSubstr("is a folder"));
  EXPECT_THAT(get_error(path("none")), HasSubstr("cannot be read"));
}

TEST_F(ConfigTextTest, ADescriptorOfThisProgramIsRead) {
  std::array<int, 2> descriptors{};
  ASSERT_EQ(pipe(descriptors.data()), 0);
  ASSERT_EQ(write(descriptors[1], "a: 1\n", 5), 5);
  close(descriptors[1]);
  EXPECT_EQ(read_config_text(fmt::format("/dev/fd/{}", descriptors[0])), "a: 1\n");
  close(descriptors[0]);
}

TEST_F(ConfigTextTest, RefusesEndlessFiles) {
  std::ofstream(path("config.yaml")) << 'a';
  std::filesystem::resize_file(path("config.yaml"), size_t{1} << 40);
  EXPECT_THAT(get_error(path("config.yaml")), HasSubstr("is longer than"));
}

TEST_F(ConfigTextTest, DescribesNonRegularFiles) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(describe_non_regular_file(path("pipe")), "a named pipe");
  EXPECT_EQ(describe_non_regular_file(path("")), "a folder");
  EXPECT_EQ(describe_non_regular_file("/dev/null"), "a device");
  EXPECT_EQ(describe_non_regular_file(put_socket()), "a socket");
  EXPECT_EQ(describe_non_regular_file(put("")), "");
  EXPECT_EQ(describe_non_regular_file(path("none")), "");
  std::filesystem::create_symlink("pipe", path("link"));
  EXPECT_EQ(describe_non_regular_file(path("link")), "a named pipe");
}

}  // namespace
}  // namespace vlmtrain
