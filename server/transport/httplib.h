// cpp-httplib as Debian built it: its classes have members that depend on these macros, so every file that includes it must agree with the
// library. Include it through this header only.
#ifndef LOSSGAUGE_SERVER_TRANSPORT_HTTPLIB_H_
#define LOSSGAUGE_SERVER_TRANSPORT_HTTPLIB_H_

#ifndef CPPHTTPLIB_OPENSSL_SUPPORT
#define CPPHTTPLIB_OPENSSL_SUPPORT
#endif
#ifndef CPPHTTPLIB_ZLIB_SUPPORT
#define CPPHTTPLIB_ZLIB_SUPPORT
#endif
#ifndef CPPHTTPLIB_BROTLI_SUPPORT
#define CPPHTTPLIB_BROTLI_SUPPORT
#endif
#include <httplib.h>

#endif  // LOSSGAUGE_SERVER_TRANSPORT_HTTPLIB_H_
