// franz-go: franz_go BOOTSTRAP JOB_FILE. The jobs are described in clients/python/job_loop.py.
package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	produceMax = 60 * time.Second
	idleMax    = 20 * time.Second
)

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

func produce(bootstrap, topic, codec, path string) error {
	records, err := readRecords(path, topic)
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.DisableIdempotentWrite(),
		kgo.MaxProduceRequestsInflightPerBroker(1), // Without idempotence this is what keeps the order.
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codecs[codec]),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	// Not RecordDeliveryTimeout: that counts from the record's timestamp, and ours lie in the past.
	ctx, cancel := context.WithTimeout(context.Background(), produceMax)
	defer cancel()
	return client.ProduceSync(ctx, records...).FirstErr()
}

func consume(bootstrap, topic, partitionCount, path string) error {
	count, err := strconv.Atoi(partitionCount)
	if err != nil {
		return err
	}
	starts := make(map[int32]kgo.Offset)
	for partition := range count {
		starts[int32(partition)] = kgo.NewOffset().At(0)
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: starts}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(context.Background(), topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return err
	}
	missing := int64(0)
	ends.Each(func(end kadm.ListedOffset) { missing += end.Offset })

	var records []*kgo.Record
	for missing > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), idleMax)
		fetches := client.PollFetches(ctx)
		cancel()
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("%d records are missing: %w", missing, err)
		}
		fetches.EachRecord(func(record *kgo.Record) { records = append(records, record) })
		missing -= int64(fetches.NumRecords())
	}
	slices.SortFunc(records, func(a, b *kgo.Record) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	return writeRecords(path, records)
}

func list(bootstrap, path string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...))
	if err != nil {
		return err
	}
	defer client.Close()
	topics, err := kadm.NewClient(client).ListTopics(context.Background())
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, topic := range topics.Sorted() {
		fmt.Fprintf(&lines, "%s\t%d\n", topic.Topic, len(topic.Partitions))
	}
	return os.WriteFile(path, []byte(lines.String()), 0o644)
}

// number leaves everything but the batch size at franz-go's defaults, which are idempotent.
func number(bootstrap, topic, recordCount, partitionCount string) error {
	count, err := strconv.Atoi(recordCount)
	if err != nil {
		return err
	}
	partitions, err := strconv.Atoi(partitionCount)
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchMaxBytes(16_384), // As Java's: else all of it fits into a few requests.
	)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), produceMax)
	defer cancel()
	var failure error
	for i := range count {
		value := fmt.Appendf(nil, "%-1000d", i)
		client.Produce(ctx, &kgo.Record{Topic: topic, Partition: int32(i % partitions), Value: value},
			func(_ *kgo.Record, err error) { failure = cmp.Or(failure, err) })
	}
	if err := client.Flush(ctx); err != nil {
		return err
	}
	return failure
}

func main() {
	if os.Args[1] == "member" {
		if err := runMember(os.Args[2:]); err != nil {
			panic(err)
		}
		return
	}
	if os.Args[1] == "transactor" {
		runTransactor(os.Args[2])
		return
	}
	bootstrap, jobFile := os.Args[1], os.Args[2]
	jobs, err := os.ReadFile(jobFile)
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(jobs)) {
		job := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		switch job[0] {
		case "produce":
			err = produce(bootstrap, job[1], job[2], job[3])
		case "consume":
			err = consume(bootstrap, job[1], job[2], job[3])
		case "list":
			err = list(bootstrap, job[1])
		case "number":
			err = number(bootstrap, job[1], job[2], job[3])
		default:
			err = fmt.Errorf("no such job: %s", job[0])
		}
		if err != nil {
			fmt.Println("FAILED", strings.Join(strings.Fields(err.Error()), " "))
		} else {
			fmt.Println("ok")
		}
	}
}
