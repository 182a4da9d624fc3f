#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <string>

// Compares the functions of cmake/portable/older_host.cpp with those of this host. Portable
// programs link that file because older hosts lack the functions.

extern "C" {
int __wrap_stat(const char* path, struct stat* result);
int __wrap_lstat(const char* path, struct stat* result);
int __wrap_fstat(int descriptor, struct stat* result);
pid_t __wrap_gettid();
int __wrap_pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                  const timespec* deadline);
}
std::from_chars_result older_from_chars(
    const char* first, const char* last, double& value,
    std::chars_format format) __asm__("__wrap__ZSt10from_charsPKcS0_RdSt12chars_format");
std::to_chars_result older_shortest(char* first, char* last, double value,
                                    std::chars_format format) __asm__("__wrap__ZSt8to_charsPcS_dSt12chars_format");
std::to_chars_result older_precise(char* first, char* last, double value, std::chars_format format,
                                   int precision) __asm__("__wrap__ZSt8to_charsPcS_dSt12chars_formati");

namespace vlmtrain {
namespace {

TEST(OlderHostTest, NumbersAreWrittenAsByToChars) {
  constexpr size_t kBufferBytes = 1500;
  const auto format_number = [](const auto& write) {
    std::string text(kBufferBytes, ' ');
    const auto [end, error] = write(text.data(), text.data() + text.size());
    EXPECT_EQ(error, std::errc{});
    text.resize(static_cast<size_t>(end - text.data()));
    return text;
  };
  for (const double value : {0.0, -0.0, 1.0, -2.5, 0.1, 1.0 / 3, 1e-5, 123456789.125, 1e15, 1e16, 9007199254740993.0,
                             1.7976931348623157e308, 5e-324, 2.2250738585072014e-308, 0.30000000000000004, 1e22}) {
    SCOPED_TRACE(value);
    for (const auto format : {std::chars_format::scientific, std::chars_format::fixed}) {
      EXPECT_EQ(format_number([&](char* first, char* last) { return older_shortest(first, last, value, format); }),
                format_number([&](char* first, char* last) { return std::to_chars(first, last, value, format); }));
      for (const int precision : {0, 1, 7, 20}) {
        EXPECT_EQ(format_number(
                      [&](char* first, char* last) { return older_precise(first, last, value, format, precision); }),
                  format_number(
                      [&](char* first, char* last) { return std::to_chars(first, last, value, format, precision); }));
      }
    }
  }
  char small_buffer[3];
  EXPECT_EQ(older_shortest(small_buffer, small_buffer + 3, 0.125, std::chars_format::fixed).ec,
            std::errc::value_too_large);
}

TEST(OlderHostTest, NumbersAreReadAsByFromChars) {
  for (const std::string text :
       {"0.25",
        "-3",
        "1e3",
        "1e-310",
        "1e999",
        "-1e999",
        "1e-999",
        "5e-324",
        "inf",
        "-inf",
        "nan",
        ".5",
        "5.",
        "1.5x",
        "0x10",
        "-0x1",
        "+1",
        " 1",
        "\t1",
        "",
        "-",
        ".",
        "e5",
        "x",
        "1e",
        "1e+",
        "1,5",
        "0.1000000000000000055511151231257827",
        "9007199254740993",
        "17976931348623157081452742373170435679807056752584499659891747680315726078002853876058955863276687817154045895"
        "35143824642343213268894641827684675467035375169860499105765512820762454900903893289440758685084551339423045832"
        "36903222948165808559332123347747"}) {
    SCOPED_TRACE(text);
    double expected = 7;
    double actual = 7;
    const auto reference = std::from_chars(text.data(), text.data() + text.size(), expected);
    const auto result = older_from_chars(text.data(), text.data() + text.size(), actual, std::chars_format::general);
    EXPECT_EQ(result.ec, reference.ec);
    EXPECT_EQ(result.ptr - text.data(), reference.ptr - text.data());
    EXPECT_EQ(std::memcmp(&actual, &expected, sizeof actual), 0) << actual << " for " << expected;
  }
}

TEST(OlderHostTest, FilesAreSeenAsByStat) {
  const auto link = std::filesystem::path(testing::TempDir()) / "older_host_link";
  std::filesystem::remove(link);
  std::filesystem::create_symlink("/proc/self/exe", link);
  struct stat expected {};
  struct stat actual {};
  EXPECT_EQ(stat(link.c_str(), &expected), __wrap_stat(link.c_str(), &actual));
  EXPECT_EQ(std::memcmp(&actual, &expected, sizeof actual), 0);
  EXPECT_EQ(lstat(link.c_str(), &expected), __wrap_lstat(link.c_str(), &actual));
  EXPECT_EQ(std::memcmp(&actual, &expected, sizeof actual), 0);
  EXPECT_EQ(fstat(STDERR_FILENO, &expected), __wrap_fstat(STDERR_FILENO, &actual));
  EXPECT_EQ(actual.st_ino, expected.st_ino);
  EXPECT_EQ(__wrap_stat("/nonexistent", &actual), -1);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(__wrap_gettid(), getpid());
  std::filesystem::remove(link);
}

TEST(OlderHostTest, AWaitEndsAtItsDeadline) {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
  const auto start = std::chrono::steady_clock::now();
  timespec deadline{};
  clock_gettime(CLOCK_MONOTONIC, &deadline);
  deadline.tv_nsec += 50'000'000;
  deadline.tv_sec += deadline.tv_nsec / 1'000'000'000;
  deadline.tv_nsec %= 1'000'000'000;
  pthread_mutex_lock(&mutex);
  EXPECT_EQ(__wrap_pthread_cond_clockwait(&condition, &mutex, CLOCK_MONOTONIC, &deadline), ETIMEDOUT);
  pthread_mutex_unlock(&mutex);
  const auto elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_GE(elapsed, std::chrono::milliseconds(45));
  EXPECT_LT(elapsed, std::chrono::seconds(20));
}

}  // namespace
}  // namespace vlmtrain
