#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <clocale>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <new>
#include <sstream>
#include <string>

// Functions of glibc and libstdc++ that older hosts lack (cmake/Portable.cmake). The linker's --wrap redirects each
// reference to __wrap_NAME. If an older version of the symbol does the same, older_symbols.S binds to it.

#pragma GCC visibility push(hidden)

extern "C" {

// True if the process has one thread, which lets libstdc++'s headers skip atomic operations. False is always correct.
char __wrap___libc_single_threaded = 0;

pid_t __wrap_gettid() {
  return static_cast<pid_t>(syscall(SYS_gettid));
}

// The kernel's struct stat is glibc's on x86-64.
int __wrap_stat(const char* path, struct stat* result) {
  return static_cast<int>(syscall(SYS_newfstatat, AT_FDCWD, path, result, 0));
}
int __wrap_lstat(const char* path, struct stat* result) {
  return static_cast<int>(syscall(SYS_newfstatat, AT_FDCWD, path, result, AT_SYMLINK_NOFOLLOW));
}
int __wrap_fstat(int descriptor, struct stat* result) {
  return static_cast<int>(syscall(SYS_fstat, descriptor, result));
}
// FFmpeg calls the 64-bit variants.
int __wrap_stat64(const char* path, struct stat* result) {
  return __wrap_stat(path, result);
}
int __wrap_lstat64(const char* path, struct stat* result) {
  return __wrap_lstat(path, result);
}
int __wrap_fstat64(int descriptor, struct stat* result) {
  return __wrap_fstat(descriptor, result);
}

// Waits by the wall clock, as libstdc++ does without this function. Callers check the time again.
int __wrap_pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                  const timespec* until) {
  constexpr int64_t kSecond = 1'000'000'000;
  const auto now = [](clockid_t of) {
    timespec time{};
    clock_gettime(of, &time);
    return time.tv_sec * kSecond + time.tv_nsec;
  };
  const int64_t end = until->tv_sec * kSecond + until->tv_nsec - now(clock) + now(CLOCK_REALTIME);
  const timespec wall_end{.tv_sec = end / kSecond, .tv_nsec = end % kSecond};
  return pthread_cond_timedwait(condition, mutex, &wall_end);
}

// std::__throw_bad_array_new_length()
[[noreturn]] __attribute__((visibility("default"))) void __wrap__ZSt28__throw_bad_array_new_lengthv() {
  throw std::bad_array_new_length();
}

// Functions that are inline before GCC 9.
__attribute__((visibility("default"))) void __wrap__ZNSt7__cxx1119basic_ostringstreamIcSt11char_traitsIcESaIcEEC1Ev(
    void* place) {
  new (place) std::ostringstream(std::ios_base::out);
}
__attribute__((visibility("default"))) void __wrap__ZNSt7__cxx1118basic_stringstreamIcSt11char_traitsIcESaIcEEC1Ev(
    void* place) {
  new (place) std::stringstream(std::ios_base::in | std::ios_base::out);
}

// Functions of std::exception_ptr that are private before GCC 11, where its copy constructor and its destructor, which
// are not inline, call them.
void copy_exception_ptr(void* place, const void* original) __asm__("_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
void destroy_exception_ptr(void* object) __asm__("_ZNSt15__exception_ptr13exception_ptrD1Ev");
__attribute__((visibility("default"))) void __wrap__ZNSt15__exception_ptr13exception_ptr9_M_addrefEv(void* object) {
  alignas(std::exception_ptr) char copy[sizeof(std::exception_ptr)];  // never destroyed: one more reference
  copy_exception_ptr(copy, object);
}
__attribute__((visibility("default"))) void __wrap__ZNSt15__exception_ptr13exception_ptr10_M_releaseEv(void* object) {
  destroy_exception_ptr(object);
}

}  // extern "C"

namespace {

locale_t plain_locale() {
  static const locale_t kPlain = newlocale(LC_ALL_MASK, "C", nullptr);
  return kPlain;
}

/// Formats a finite number with printf, with a decimal point in every locale.
std::to_chars_result print_real(char* first, char* last, const char* format, int precision, double value) {
  const locale_t before = uselocale(plain_locale());
  char text[1600];  // the largest number has 309 digits, the smallest 1074 decimals
  const int length = std::snprintf(text, sizeof text, format, precision, value);
  uselocale(before);
  if (length < 0 || length >= static_cast<int>(sizeof text) || length > last - first)
    return {last, std::errc::value_too_large};
  std::memcpy(first, text, static_cast<size_t>(length));
  return {first + length, std::errc{}};
}

/// Returns the minimum number of decimals that reproduces the number.
int digits_after_first(double value) {
  constexpr int kAlwaysEnough = 16;
  char text[32];
  for (int digits = 0; digits < kAlwaysEnough; ++digits) {
    const auto end = print_real(text, text + sizeof text, "%.*e", digits, value).ptr;
    *end = '\0';
    if (strtod_l(text, nullptr, plain_locale()) == value) return digits;
  }
  return kAlwaysEnough;
}

}  // namespace

// std::to_chars(char*, char*, double, std::chars_format) of finite numbers, scientific and fixed; and with a precision.
std::to_chars_result shortest_by_printf(char* first, char* last, double value,
                                        std::chars_format format) __asm__("__wrap__ZSt8to_charsPcS_dSt12chars_format");
std::to_chars_result shortest_by_printf(char* first, char* last, double value, std::chars_format format) {
  const int digits = digits_after_first(value);
  if (format == std::chars_format::scientific) return print_real(first, last, "%.*e", digits, value);
  char text[32];
  const auto end = print_real(text, text + sizeof text, "%.*e", digits, value).ptr;
  *end = '\0';
  const int exponent = std::atoi(std::strchr(text, 'e') + 1);
  return print_real(first, last, "%.*f", digits > exponent ? digits - exponent : 0, value);
}
std::to_chars_result precise_by_printf(char* first, char* last, double value, std::chars_format format,
                                       int precision) __asm__("__wrap__ZSt8to_charsPcS_dSt12chars_formati");
std::to_chars_result precise_by_printf(char* first, char* last, double value, std::chars_format format, int precision) {
  return print_real(first, last, format == std::chars_format::fixed ? "%.*f" : "%.*e", precision, value);
}

// std::from_chars(const char*, const char*, double&, std::chars_format) of decimal numbers.
std::from_chars_result from_chars_by_strtod(
    const char* first, const char* last, double& value,
    std::chars_format) __asm__("__wrap__ZSt10from_charsPKcS0_RdSt12chars_format");
std::from_chars_result from_chars_by_strtod(const char* first, const char* last, double& value, std::chars_format) {
  // strtod accepts blanks, a plus sign and hexadecimal digits, which from_chars rejects.
  const locale_t kPlain = plain_locale();
  const std::string text = std::string(first, last).substr(0, std::string(first, last).find_first_of("xX"));
  if (text.empty() || text.front() == '+' || (text.front() >= 0 && text.front() <= ' ')) {
    return {first, std::errc::invalid_argument};
  }
  char* end = nullptr;
  errno = 0;
  const double number = strtod_l(text.c_str(), &end, kPlain);
  if (end == text.c_str()) return {first, std::errc::invalid_argument};
  const char* const stop = first + (end - text.c_str());
  // Only strtod reports subnormal numbers as out of range.
  if (errno == ERANGE && (number == 0 || std::isinf(number))) return {stop, std::errc::result_out_of_range};
  value = number;
  return {stop, std::errc{}};
}

#pragma GCC visibility pop
