// Package bench runs package wheel side by side with other timers, in one run: time.AfterFunc, a
// heap behind a mutex, and github.com/RussellLuo/timingwheel. It is a module of its own, so that
// what it compares with is no dependency of Bide. README.md has the command and a table of results.
package bench
