// References of this program to symbols that glibc and libstdc++ have given a newer version than older hosts know, bound to the
// version that does the same there (cmake/Portable.cmake; scripts/make_portable.sh checks oldest_host.versions). The linker's --wrap
// sends each reference to __wrap_NAME; the jump leaves the caller's address in place, by which dlopen and dlsym know who asks.
#define NAME_OF_WRAP(name) __wrap_##name
#define OLDER(name, older, version)              \
  .symver older_##name, older@version;           \
  .globl NAME_OF_WRAP(name);                     \
  .hidden NAME_OF_WRAP(name);                    \
  .type NAME_OF_WRAP(name), @function;           \
  NAME_OF_WRAP(name): endbr64;                   \
  jmp *older_##name@GOTPCREL(%rip)

.text
OLDER(exp, exp, GLIBC_2.2.5)
OLDER(exp2, exp2, GLIBC_2.2.5)
OLDER(hypot, hypot, GLIBC_2.2.5)
OLDER(log, log, GLIBC_2.2.5)
OLDER(pow, pow, GLIBC_2.2.5)
OLDER(dladdr, dladdr, GLIBC_2.2.5)
OLDER(dlclose, dlclose, GLIBC_2.2.5)
OLDER(dlerror, dlerror, GLIBC_2.2.5)
OLDER(dlinfo, dlinfo, GLIBC_2.3.3)
OLDER(dlopen, dlopen, GLIBC_2.2.5)
OLDER(dlsym, dlsym, GLIBC_2.2.5)
OLDER(pthread_create, pthread_create, GLIBC_2.2.5)
OLDER(pthread_detach, pthread_detach, GLIBC_2.2.5)
OLDER(pthread_join, pthread_join, GLIBC_2.2.5)
OLDER(pthread_getspecific, pthread_getspecific, GLIBC_2.2.5)
OLDER(pthread_key_create, pthread_key_create, GLIBC_2.2.5)
OLDER(pthread_key_delete, pthread_key_delete, GLIBC_2.2.5)
OLDER(pthread_once, pthread_once, GLIBC_2.2.5)
OLDER(pthread_rwlock_destroy, pthread_rwlock_destroy, GLIBC_2.2.5)
OLDER(pthread_rwlock_init, pthread_rwlock_init, GLIBC_2.2.5)
OLDER(pthread_rwlock_rdlock, pthread_rwlock_rdlock, GLIBC_2.2.5)
OLDER(pthread_rwlock_unlock, pthread_rwlock_unlock, GLIBC_2.2.5)
OLDER(pthread_rwlock_wrlock, pthread_rwlock_wrlock, GLIBC_2.2.5)
OLDER(pthread_setspecific, pthread_setspecific, GLIBC_2.2.5)
OLDER(pthread_sigmask, pthread_sigmask, GLIBC_2.2.5)
// std::condition_variable::wait(std::unique_lock<std::mutex>&)
OLDER(_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE, _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE, GLIBCXX_3.4.11)
// std::stringbuf::str() const &, which was str() const
OLDER(_ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv, _ZNKSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv, GLIBCXX_3.4.21)
// std::runtime_error's move constructor: its copy constructor, which shares the text
OLDER(_ZNSt13runtime_errorC1EOS_, _ZNSt13runtime_errorC1ERKS_, GLIBCXX_3.4.21)
OLDER(_ZNSt13runtime_errorC2EOS_, _ZNSt13runtime_errorC2ERKS_, GLIBCXX_3.4.21)

.section .note.GNU-stack, "", @progbits
