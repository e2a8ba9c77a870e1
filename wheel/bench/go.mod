module github.com/bide-mq/bide/wheel/bench

go 1.26.0

require (
	github.com/RussellLuo/timingwheel v0.0.0-20220218152713-54845bda3108
	github.com/bide-mq/bide v0.0.0
)

replace github.com/bide-mq/bide => ../..
