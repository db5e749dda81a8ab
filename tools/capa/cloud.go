package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	signer "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/eks"
	ekstypes "github.com/aws/aws-sdk-go-v2/service/eks/types"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	iamtypes "github.com/aws/aws-sdk-go-v2/service/iam/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"sigs.k8s.io/cluster-api-provider-aws/v2/pkg/cloud/services/common"
	ekscloud "sigs.k8s.io/cluster-api-provider-aws/v2/pkg/cloud/services/eks"
	"sigs.k8s.io/cluster-api-provider-aws/v2/pkg/cloud/services/iamauth"
	ststypes "sigs.k8s.io/cluster-api-provider-aws/v2/pkg/cloud/services/sts"
)

// cloud is an EKS cluster that is up and needs no change. A method that is not implemented here is a nil pointer: a
// call of it means that the provider does something new, which must be examined.
type cloud struct {
	endpoint string
	ca       []byte
}

type clusters struct {
	ekscloud.EKSAPI
	cloud
}

func (c clusters) DescribeCluster(
	_ context.Context, in *eks.DescribeClusterInput, _ ...func(*eks.Options),
) (*eks.DescribeClusterOutput, error) {
	return &eks.DescribeClusterOutput{Cluster: &ekstypes.Cluster{
		Name: in.Name, Arn: aws.String("arn:aws:eks:eu-west-1:000000000000:cluster/" + aws.ToString(in.Name)),
		Status: ekstypes.ClusterStatusActive, Version: aws.String("1.36"), Endpoint: aws.String(c.endpoint),
		CertificateAuthority: &ekstypes.Certificate{Data: aws.String(base64.StdEncoding.EncodeToString(c.ca))},
		ResourcesVpcConfig: &ekstypes.VpcConfigResponse{
			ClusterSecurityGroupId: aws.String("sg-1"),
			EndpointPrivateAccess:  true,
		},
		Logging: &ekstypes.Logging{},
	}}, nil
}

func (c clusters) TagResource(
	context.Context, *eks.TagResourceInput, ...func(*eks.Options),
) (*eks.TagResourceOutput, error) {
	return &eks.TagResourceOutput{}, nil
}

func (c clusters) ListAddons(
	context.Context, *eks.ListAddonsInput, ...func(*eks.Options),
) (*eks.ListAddonsOutput, error) {
	return &eks.ListAddonsOutput{}, nil
}

type groups struct{ common.EC2API }

func (groups) DescribeSecurityGroups(
	context.Context, *ec2.DescribeSecurityGroupsInput, ...func(*ec2.Options),
) (*ec2.DescribeSecurityGroupsOutput, error) {
	return &ec2.DescribeSecurityGroupsOutput{
		SecurityGroups: []ec2types.SecurityGroup{{GroupId: aws.String("sg-1"), GroupName: aws.String("cluster")}},
	}, nil
}

type roles struct{ iamauth.IAMAPI }

// GetRole returns a role that is managed elsewhere, so that the provider does not change it.
func (roles) GetRole(_ context.Context, in *iam.GetRoleInput, _ ...func(*iam.Options)) (*iam.GetRoleOutput, error) {
	return &iam.GetRoleOutput{
		Role: &iamtypes.Role{RoleName: in.RoleName, Arn: aws.String("arn:aws:iam::000000000000:role/eks")},
	}, nil
}

type tokens struct{ ststypes.STSClient }

// PresignGetCallerIdentity returns another URL at each call, as AWS does, so that each token is new.
func (tokens) PresignGetCallerIdentity(
	context.Context, *sts.GetCallerIdentityInput, ...func(*sts.PresignOptions),
) (*signer.PresignedHTTPRequest, error) {
	return &signer.PresignedHTTPRequest{URL: fmt.Sprintf("https://sts.example.com/?signed=%d", time.Now().UnixNano())}, nil
}

func (tokens) GetCallerIdentity(
	context.Context, *sts.GetCallerIdentityInput, ...func(*sts.Options),
) (*sts.GetCallerIdentityOutput, error) {
	return &sts.GetCallerIdentityOutput{
		UserId:  aws.String("user"),
		Account: aws.String("000000000000"),
		Arn:     aws.String("arn:aws:iam::000000000000:user/capa"),
	}, nil
}
